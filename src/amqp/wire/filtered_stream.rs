//! Installs the frame filter in lapin's connections, above TLS if the connection uses TLS.

use super::burst::Burst;
use super::delivery_budget::DeliveryFlow;
use super::frame_filter::FrameFilter;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_rustls::TlsConnector;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// The size of the read buffer of a connection.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// The largest frame in bytes, unless the address sets `?frame_max=`. It is RabbitMQ's default.
/// lapin allocates buffers for 32 frames in each direction, so a broker without a limit would
/// exhaust the memory.
const FRAME_BYTES_MAX: u32 = 131_072;

/// Hooks into the traffic of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionHooks {
    /// Blocks reading while the delivery budget is exhausted; `None` if the connection consumes no
    /// replies.
    pub(crate) flow: Option<Arc<DeliveryFlow>>,
    /// Blocks writing while a burst is being queued.
    pub(crate) burst: Arc<Burst>,
    /// How many messages the broker has returned, counted before lapin receives them.
    pub(crate) returns: Arc<AtomicU64>,
}

/// Opens a connection whose input is filtered before lapin parses it.
pub(crate) async fn connect(
    mut uri: AMQPUri,
    properties: ConnectionProperties,
    tls: Arc<ClientConfig>,
    hooks: ConnectionHooks,
) -> lapin::Result<Connection> {
    let frame_bytes_max = uri.query.frame_max.filter(|max| *max > 0).unwrap_or(FRAME_BYTES_MAX);
    uri.query.frame_max = Some(frame_bytes_max);
    let sockets = Runtime::tokio_current();
    let reactor = FilteringReactor {
        sockets: Tokio::current(),
        frame_bytes_max: frame_bytes_max as usize,
        hooks,
    };
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), reactor.clone()));
    let open = async move |uri: AMQPUri, _| {
        let (host, port) = (uri.authority.host, uri.authority.port);
        let addresses = sockets.to_socket_addrs((host.clone(), port));
        let socket = AsyncTcpStream::connect(&sockets, addresses).await?;
        let stream: Socket = match uri.scheme {
            AMQPScheme::AMQP => Box::new(socket),
            AMQPScheme::AMQPS => {
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                Box::new(TlsConnector::from(tls.clone()).connect(name, socket).await?)
            }
        };
        Ok(AsyncTcpStream::Plain(reactor.filter_stream(stream)))
    };
    Connection::connector(uri, runtime, open, properties).await
}

/// A reactor for lapin: tokio's, with filtered sockets.
#[derive(Clone, Debug)]
struct FilteringReactor {
    sockets: Tokio,
    frame_bytes_max: usize,
    hooks: ConnectionHooks,
}

/// A plain socket, or a TLS stream over one.
type Socket = Box<dyn ReadWrite>;

/// A stream that can be read and written, as one trait for [`Socket`].
trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

impl FilteringReactor {
    fn filter_stream(&self, stream: Socket) -> FilteredStream<Socket> {
        FilteredStream {
            stream,
            filter: FrameFilter::new(self.frame_bytes_max),
            hooks: self.hooks.clone(),
            read_buffer: vec![0; READ_BUFFER_BYTES],
            filtered_bytes: Vec::new(),
            consumed: 0,
        }
    }
}

impl Reactor for FilteringReactor {
    type TcpStream = FilteredStream<Socket>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.sockets.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.sockets.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.sockets.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (reactor, connection) = (self.clone(), self.sockets.tcp_connect_addr(address));
        async move { connection.await.map(|socket| reactor.filter_stream(Box::new(socket))) }
    }
}

/// A stream whose input passes through the frame filter.
struct FilteredStream<S> {
    stream: S,
    filter: FrameFilter,
    hooks: ConnectionHooks,
    read_buffer: Vec<u8>,
    /// The output of the filter that the reader has not consumed completely.
    filtered_bytes: Vec<u8>,
    /// How many of `filtered_bytes` the reader has consumed.
    consumed: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for FilteredStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // A chunk may leave nothing to read yet, such as a part of a frame that is buffered.
        while this.consumed == this.filtered_bytes.len() {
            this.filtered_bytes.clear();
            this.consumed = 0;
            if let Some(flow) = &this.hooks.flow {
                ready!(flow.poll_read_allowed(context));
                this.filter.set_counted_channel(flow.channel());
            }
            let received_bytes =
                ready!(Pin::new(&mut this.stream).poll_read(context, &mut this.read_buffer))?;
            if received_bytes == 0 {
                return Poll::Ready(Ok(0));
            }
            this.filter
                .filter(&this.read_buffer[..received_bytes], &mut this.filtered_bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            this.hooks.returns.fetch_add(this.filter.take_returns(), Ordering::AcqRel);
            let body_bytes = this.filter.take_body_bytes();
            if let Some(flow) = &this.hooks.flow {
                flow.record_read(body_bytes);
            }
        }
        let unconsumed = &this.filtered_bytes[this.consumed..];
        let count = unconsumed.len().min(buffer.len());
        buffer[..count].copy_from_slice(&unconsumed[..count]);
        this.consumed += count;
        Poll::Ready(Ok(count))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FilteredStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, buffers)
    }

    /// Waits for the end of a burst, then flushes. lapin flushes before it takes the queued frames,
    /// so it then takes the whole burst and writes it at once.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.hooks.burst.wait_for_end();
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::REASON_HEADER;
    use super::*;
    use base::trust::Authorities;
    use futures_util::StreamExt;
    use lapin::options::{BasicAckOptions, BasicConsumeOptions};
    use lapin::types::{AMQPValue, FieldTable};
    use std::net::TcpListener;

    /// Returns the broker's script for a consuming client: for each step, how many frames of the
    /// client it awaits, and the bytes that it then sends.
    fn script() -> Vec<(usize, Vec<u8>)> {
        let method = |channel: u8, bytes: &[u8]| frame(1, channel, bytes);
        let start = [&[0, 10, 0, 10, 0, 9][..], &[0; 4], &long(b"PLAIN"), &long(b"en_US")].concat();
        let deliver = |number: u8| {
            method(
                1,
                &[&[0, 60, 0, 60, 1, b't'][..], &[0; 7], &[number, 0], &[1, 0xe9, 1, b'k']]
                    .concat(),
            )
        };
        let header = |properties: &[u8]| {
            frame(2, 1, &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2][..], properties].concat())
        };
        // An array nested 3,000 levels deep.
        let nested =
            (0..3_000).fold(vec![b'V'], |content, _| [&b"A"[..], &long(&content)].concat());
        let unsupported = [&[0x20, 0][..], &long(&[&[1, b'k'][..], &nested].concat())].concat();
        let deliveries = [
            deliver(1),
            header(&unsupported),
            frame(3, 1, b"{}"),
            deliver(2),
            header(&[0, 0x20, 2, b'o', b'k']),
            frame(3, 1, b"[]"),
        ];
        let tune = method(0, &[0, 10, 0, 30, 0, 9, 0, 2, 0, 0, 0, 0]);
        let connection_open_ok = method(0, &[0, 10, 0, 41, 0]);
        let channel_open_ok = method(1, &[0, 20, 0, 11, 0, 0, 0, 0]);
        let consume_ok = method(1, &[0, 60, 0, 21, 1, b't']);
        vec![
            (0, method(0, &start)),
            (1, tune),
            (2, connection_open_ok),
            (1, channel_open_ok),
            (1, [consume_ok, deliveries.concat()].concat()),
            // Both acks.
            (2, Vec::new()),
        ]
    }

    fn frame(kind: u8, channel: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 0, channel][..], &long(payload), &[0xce]].concat()
    }

    /// Encodes a value with its length in four bytes.
    fn long(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).expect("small").to_be_bytes()[..], bytes].concat()
    }

    /// Serves one client by the script.
    fn serve(mut client: impl Read + Write) -> io::Result<()> {
        let mut protocol_header = [0; 8];
        client.read_exact(&mut protocol_header)?;
        for (frame_count, frames_to_send) in script() {
            for _ in 0..frame_count {
                let mut head = [0; 7];
                client.read_exact(&mut head)?;
                let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
                let mut payload_and_end_marker = vec![0; size + 1];
                client.read_exact(&mut payload_and_end_marker)?;
            }
            client.write_all(&frames_to_send)?;
            client.flush()?;
        }
        Ok(())
    }

    /// Receives both deliveries and acknowledges them.
    async fn consume(uri: &str, tls: Arc<ClientConfig>) {
        let uri: AMQPUri = uri.parse().expect("an address");
        let connection =
            connect(uri, ConnectionProperties::default(), tls, ConnectionHooks::default())
                .await
                .expect("connects");
        let channel = connection.create_channel().await.expect("a channel");
        let consuming = channel.basic_consume(
            "q".into(),
            "t".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let mut deliveries = consuming.await.expect("consumes");
        let substituted = deliveries.next().await.expect("a delivery").expect("readable");
        let headers = substituted.properties.headers().clone().expect("headers");
        assert_eq!(
            headers.inner().get(REASON_HEADER),
            Some(&AMQPValue::LongString("its headers nest more than 16 deep".into()))
        );
        assert_eq!(
            (
                substituted.exchange.as_str(),
                substituted.routing_key.as_str(),
                &substituted.data[..]
            ),
            ("?", "k", &b"{}"[..])
        );
        let supported = deliveries.next().await.expect("a delivery").expect("readable");
        assert_eq!(
            (supported.properties.kind().as_ref().map(ToString::to_string), &supported.data[..]),
            (Some("ok".to_owned()), &b"[]"[..])
        );
        for delivery in [substituted, supported] {
            delivery.ack(BasicAckOptions::default()).await.expect("acknowledged");
        }
    }

    /// Starts a broker for one client in a thread. Returns its port.
    fn start_broker(
        serve: impl FnOnce(std::net::TcpStream) -> io::Result<()> + Send + 'static,
    ) -> (u16, std::thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        (port, std::thread::spawn(move || serve(listener.accept()?.0)))
    }

    #[actix_rt::test]
    async fn unsupported_headers_keep_the_connection_open() {
        let (port, broker) = start_broker(serve);
        consume(
            &format!("amqp://guest:guest@127.0.0.1:{port}"),
            Arc::new(Authorities::default().client_config()),
        )
        .await;
        broker.join().expect("no panic").expect("both acknowledged");
    }

    #[actix_rt::test]
    async fn unsupported_headers_keep_the_connection_open_over_tls() {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .expect("a certificate");
        let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der())
            .expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions");
        let config = versions
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .expect("a configuration");
        let (port, broker) = start_broker(move |socket| {
            let tls_connection =
                rustls::ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
            serve(rustls::StreamOwned::new(tls_connection, socket))
        });
        let authorities = Authorities::from(vec![certified.cert.der().clone()]);
        let tls = Arc::new(authorities.client_config());
        consume(&format!("amqps://guest:guest@localhost:{port}"), tls).await;
        broker.join().expect("no panic").expect("both acknowledged");
    }
}

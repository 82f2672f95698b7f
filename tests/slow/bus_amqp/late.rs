//! A network that holds back the broker's first confirm.

use super::rig::{host, server};
use std::cell::Cell;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// The head of a frame: its type, its channel, the length of what follows.
const HEAD_BYTES: usize = 7;

/// Class and method of `basic.ack`.
const ACK: [u8; 4] = [0, 60, 0, 80];

/// A relay that holds the first confirm until [`LateConfirm::release`]; all else passes it.
pub(super) struct LateConfirm {
    port: u16,
    is_held: Rc<Cell<bool>>,
    released: Rc<Notify>,
}

impl LateConfirm {
    pub(super) async fn open() -> LateConfirm {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let late = LateConfirm { port, is_held: Rc::default(), released: Rc::default() };
        let (is_held, released) = (late.is_held.clone(), late.released.clone());
        actix_rt::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(host(&server())).await else { return };
                let (mut from_near, mut to_near) = near.into_split();
                let (mut from_far, mut to_far) = far.into_split();
                let (frames, mut come) = mpsc::unbounded_channel();
                actix_rt::spawn(async move { copy(&mut from_near, &mut to_far).await });
                actix_rt::spawn(async move {
                    while let Some(frame) = frame(&mut from_far).await {
                        if frames.send(frame).is_err() {
                            break;
                        }
                    }
                });
                let (is_held, released) = (is_held.clone(), released.clone());
                actix_rt::spawn(async move {
                    let mut held = None;
                    loop {
                        let passing = tokio::select! {
                            () = released.notified(), if held.is_some() => held.take(),
                            frame = come.recv() => match frame {
                                None => break,
                                Some(frame) if is_ack(&frame) && !is_held.replace(true) => {
                                    held = Some(frame);
                                    None
                                }
                                passing => passing,
                            },
                        };
                        // An end that is gone says so to the other by itself.
                        if to_near.write_all(&passing.unwrap_or_default()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        late
    }

    /// Whether the confirm has come.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.get()
    }

    /// Lets the confirm through.
    pub(super) fn release(&self) {
        self.released.notify_one();
    }

    pub(super) fn server(&self) -> String {
        server().replace(&host(&server()), &format!("127.0.0.1:{}", self.port))
    }
}

fn is_ack(frame: &[u8]) -> bool {
    frame.get(HEAD_BYTES..).is_some_and(|method| method.starts_with(&ACK))
}

/// One whole frame, or none at the end.
async fn frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut frame = vec![0; HEAD_BYTES];
    from.read_exact(&mut frame).await.ok()?;
    let length = <[u8; 4]>::try_from(frame.get(3..HEAD_BYTES)?).ok()?;
    // One byte ends it.
    frame.resize(HEAD_BYTES + u32::from_be_bytes(length) as usize + 1, 0);
    from.read_exact(frame.get_mut(HEAD_BYTES..)?).await.ok()?;
    Some(frame)
}

//! A stub manager over HTTP: the queue API for one queue. A server passes requests to a lease
//! queue, which leases the messages.

mod desk;
mod server;

use super::super::error::ClientError;
use super::cut::CutAt;
use super::log::Log;
use super::messages::Message;
use desk::{Desk, Order};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// A stub manager that serves the queue API for one queue.
pub(super) struct Http {
    address: SocketAddr,
    orders: mpsc::UnboundedSender<Order>,
    desk: actix_rt::task::JoinHandle<()>,
}

impl Http {
    /// Listens on a free port of the loopback interface.
    pub(super) fn open(queue: &str, log: Log) -> Result<Http, ClientError> {
        let (asks, asked) = mpsc::channel(server::ASKS_MAX);
        let (server, address) = server::serve(([127, 0, 0, 1], 0).into(), asks.clone())?;
        let (orders, ordered) = mpsc::unbounded_channel();
        let desk = Desk::new(queue, log, address, asks, server);
        let desk = actix_rt::spawn(desk.run(asked, ordered));
        Ok(Http { address, orders, desk })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn send(&self, message: &Message) {
        self.order(Order::Put(message.clone()));
    }

    pub(super) fn cut(&self, number: usize, at: CutAt) {
        self.order(Order::Cut(number, at));
    }

    pub(super) fn give_up(&self, number: usize) {
        self.order(Order::GiveUp(number));
    }

    pub(super) fn cancel_when_lent(&self, number: usize) {
        self.order(Order::CancelWhenLent(number));
    }

    pub(super) fn clear(&self) {
        self.order(Order::Clear);
    }

    fn order(&self, order: Order) {
        // Sending fails only after the queue was closed.
        let _ = self.orders.send(order);
    }

    pub(super) async fn close(self) {
        self.order(Order::Close);
        // A queue that panicked has ended, too.
        let _ = self.desk.await;
    }
}

//! Handles the requests of a worker on its stream: credit, replies, extensions of leases, nacks.

use super::Stream;
use crate::api::grpc::answer::{Answer, declined, refused, said, settled, useless};
use crate::api::grpc::arriving::Other;
use crate::api::grpc::said::{LEASES, kind, pause, taken};
use crate::api::grpc::spans::{span, until};
use crate::api::grpc::wire::from_worker::Say;
use crate::api::grpc::wire::to_worker::Say as Tell;
use crate::api::grpc::wire::{ExtendRequest, Lease, NackRequest, ReplyRequest, Taken};
use crate::api::lending::{self, RECEIPT_BYTES_MAX, Receipt};
use crate::api::problem::Problem;
use crate::api::query::ReplyType;
use crate::room;
use futures_util::FutureExt;

impl Stream {
    /// Handles a request. A returned problem ends the stream.
    pub(super) fn hear(&mut self, say: Say, room: Option<room::Taken>) -> Option<Problem> {
        match say {
            Say::Hello(_) => {
                return Some(Problem::malformed("a worker says Hello once".to_owned()));
            }
            Say::Want(want) => self.want(want.messages),
            Say::Reply(reply) => self.reply(reply, room),
            Say::Extend(extend) => self.extend(extend),
            Say::Nack(nack) => self.nack(nack),
        }
        None
    }

    fn want(&mut self, messages: u32) {
        let had = self.credit;
        let limit = self.ways.common.settings.grpc.credit_max;
        self.credit = self.credit.saturating_add(messages).min(limit);
        if had == 0 && self.credit > 0 && !self.is_draining {
            self.wait();
        }
    }

    /// Reports why a request is rejected.
    fn decline(&mut self, receipt: String, problem: &Problem) {
        // A text that cannot be a receipt is not kept until the worker reads the report.
        let receipt = if receipt.len() > RECEIPT_BYTES_MAX { String::new() } else { receipt };
        self.tell(Tell::Taken(useless(receipt, problem)));
    }

    fn reply(&mut self, request: ReplyRequest, room: Option<room::Taken>) {
        let ReplyRequest { receipt: text, kind: number, body } = request;
        let found = kind(number).and_then(|kind| Ok((kind, Receipt::parse(&text)?)));
        let (kind, receipt) = match found {
            Ok(found) => found,
            Err(problem) => return self.decline(text, &problem),
        };
        let (held, answers) = match kind {
            ReplyType::Progress => (None, &self.answers),
            ReplyType::Result | ReplyType::Error => {
                (self.hands.put_down(&receipt.id, receipt.delivery), &self.settlements)
            }
        };
        let (ways, caller) = (self.ways.clone(), self.caller.clone());
        let from = (caller.sender(), Some(self.seat.line.clone()));
        answers.push(
            async move {
                let told = match settled(&ways, &caller, &receipt).await {
                    Ok(desk) => lending::reply(&desk, receipt.clone(), kind, from, body).await,
                    Err(problem) => return declined(text, held, &problem),
                };
                // The permit is held until here.
                drop(room);
                match taken(text, told) {
                    Ok(taken @ Taken { changed: true, .. }) if kind == ReplyType::Progress => {
                        Answer::Extended(receipt, taken.receipt.clone(), Tell::Taken(taken))
                    }
                    told => said(told, held),
                }
            }
            .boxed(),
        );
    }

    fn extend(&mut self, request: ExtendRequest) {
        let ExtendRequest { receipt: text, lease } = request;
        let found = span("lease", lease, LEASES);
        let (lease, receipt) = match found.and_then(|lease| Ok((lease, Receipt::parse(&text)?))) {
            Ok(found) => found,
            Err(problem) => return self.decline(text, &problem),
        };
        let (ways, caller) = (self.ways.clone(), self.caller.clone());
        let line = self.seat.line.clone();
        self.answers.push(
            async move {
                let extended = match settled(&ways, &caller, &receipt).await {
                    Ok(_) => lending::extend(&ways, &receipt, lease, Some(&line)).await,
                    Err(problem) => Err(problem),
                };
                match extended {
                    Ok(lease) => {
                        let lease = Lease { receipt: text.clone(), until: Some(until(lease)) };
                        Answer::Extended(receipt, text, Tell::Lease(lease))
                    }
                    Err(problem) => refused(receipt, text, None, &problem),
                }
            }
            .boxed(),
        );
    }

    fn nack(&mut self, request: NackRequest) {
        let found = pause(&request);
        let text = request.receipt;
        let (pause, receipt) = match found.and_then(|pause| Ok((pause, Receipt::parse(&text)?))) {
            Ok(found) => found,
            Err(problem) => return self.decline(text, &problem),
        };
        let held = self.hands.put_down(&receipt.id, receipt.delivery);
        let (ways, caller) = (self.ways.clone(), self.caller.clone());
        self.settlements.push(
            async move {
                let told = match settled(&ways, &caller, &receipt).await {
                    Ok(desk) => lending::nack(&desk, &receipt, pause, caller.sender()).await,
                    Err(problem) => Err(problem),
                };
                match told {
                    Ok(told) => said(taken(text, told), held),
                    Err(problem) => refused(receipt, text, held, &problem),
                }
            }
            .boxed(),
        );
    }

    /// Handles an event that is no message.
    pub(super) fn hear_other(&mut self, other: Other) {
        let Other::TooLarge(bytes, receipt) = other else { return };
        let max = self.ways.common.settings.http.body_bytes_max;
        let problem = Problem::too_large(format!(
            "the message has {bytes} bytes, more than {max} (setting http.body_bytes_max): say \
             that the attempt failed, or give a smaller result"
        ));
        self.decline(receipt.unwrap_or_default(), &problem);
    }
}

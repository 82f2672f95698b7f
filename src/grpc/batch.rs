//! What a worker says together: `FromWorkerBatch` of `proto/workers.proto`. It is written by hand,
//! because the generated one would make a structure in memory of every two bytes of a batch of
//! empty replies.

use super::wire::{Batches, ReplyRequest};
use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, message, skip_field, uint32};
use prost::{DecodeError, Message};

/// How many replies a batch may have.
pub const REPLIES_MAX: usize = 100;

/// The field numbers in `proto/workers.proto`.
const REPLIES: u32 = 1;
const WANT: u32 = 2;

/// What a worker says together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FromWorkerBatch {
    /// The first replies, `REPLIES_MAX` at most.
    pub replies: Vec<ReplyRequest>,
    /// The credit to add.
    pub want: u32,
    /// How many replies were passed over, because there were too many.
    pub surplus: usize,
}

impl Batches {
    /// Says that batches are taken, where a message of a worker may have so many bytes.
    pub fn with_bytes_max(bytes_max: usize) -> Batches {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        Batches { replies_max: REPLIES_MAX as u32, bytes_max }
    }
}

impl Message for FromWorkerBatch {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        message::encode_repeated(REPLIES, &self.replies, buffer);
        if self.want > 0 {
            uint32::encode(WANT, &self.want, buffer);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            REPLIES if self.replies.len() < REPLIES_MAX => {
                message::merge_repeated(wire_type, &mut self.replies, buffer, context)
            }
            WANT => uint32::merge(wire_type, &mut self.want, buffer, context),
            _ => {
                self.surplus += usize::from(tag == REPLIES);
                skip_field(wire_type, tag, buffer, context)
            }
        }
    }

    fn encoded_len(&self) -> usize {
        let want = if self.want > 0 { uint32::encoded_len(WANT, &self.want) } else { 0 };
        message::encoded_len_repeated(REPLIES, &self.replies) + want
    }

    fn clear(&mut self) {
        *self = FromWorkerBatch::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(replies: usize) -> FromWorkerBatch {
        let reply = |number| ReplyRequest { receipt: format!("r{number}"), ..Default::default() };
        let replies = (0..replies).map(reply).collect();
        FromWorkerBatch { replies, want: 7, surplus: 0 }
    }

    #[test]
    fn a_batch_is_what_was_encoded() {
        for replies in [0, 1, REPLIES_MAX] {
            let encoded = batch(replies).encode_to_vec();
            assert_eq!(encoded.len(), batch(replies).encoded_len());
            let decoded = FromWorkerBatch::decode(&encoded[..]).expect("decodes");
            assert_eq!(decoded, batch(replies));
        }
    }

    #[test]
    fn replies_beyond_the_most_are_passed_over_and_counted() {
        let encoded = batch(REPLIES_MAX + 3).encode_to_vec();
        let decoded = FromWorkerBatch::decode(&encoded[..]).expect("decodes");
        let expected = FromWorkerBatch { surplus: 3, ..batch(REPLIES_MAX) };
        assert_eq!(decoded, expected);
    }
}

//! What comes back to the sender of a message.

use std::any::Any;
use std::fmt;

/// What the sender of a message wants back once the message is taken. A bus does not look inside.
pub struct Receipt(Box<dyn Issued>);

/// What a receipt holds.
pub trait Issued: Any + Send {
    /// Another receipt for the same message, for a bus that lends it to worker after worker; none:
    /// the message is given away once.
    fn again(&self) -> Option<Receipt>;
}

impl Receipt {
    /// A receipt that holds `value`.
    pub fn new<T: Issued>(value: T) -> Receipt {
        Receipt(Box::new(value))
    }

    /// See [`Issued::again`].
    pub fn again(&self) -> Option<Receipt> {
        self.0.again()
    }

    /// What it holds, for its sender, who knows the type; none: it is of another type.
    pub fn open<T: Any>(self) -> Option<T> {
        let value: Box<dyn Any> = self.0;
        value.downcast().ok().map(|value| *value)
    }

    /// A look at what it holds.
    pub fn peek<T: Any>(&self) -> Option<&T> {
        let value: &dyn Any = &*self.0;
        value.downcast_ref()
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}

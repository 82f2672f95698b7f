//! Whether this process is active or stands by, and what a standby knows of the active process.

use super::health::HealthCheck;
use super::manager_handle::ManagerHandle;
use base::times::format_rfc3339;
use journal::ActiveProcess;
use tokio::sync::watch;

/// What this process is among those of its name.
#[derive(Clone)]
pub enum Role {
    /// It works on jobs. With the journal in a file there is no other role.
    Active(ManagerHandle),
    /// It waits until it can become active, and serves reads.
    Standby(Standby),
}

/// A process that waits until it can become active.
#[derive(Clone)]
pub struct Standby(watch::Receiver<LastLook>);

/// What a standby has found when it last looked whether it can become active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastLook {
    /// Another process is active.
    ActiveElsewhere(ActiveProcess),
    /// The database did not answer, for this reason.
    Failed(String),
    /// This process has taken the name, and recovers the jobs.
    Taken,
}

impl Role {
    /// Returns the standby; `None` if this process is active.
    pub fn standby(&self) -> Option<&Standby> {
        match self {
            Role::Active(_) => None,
            Role::Standby(standby) => Some(standby),
        }
    }
}

impl Standby {
    /// Creates a standby whose last look this channel has.
    pub fn new(looks: watch::Receiver<LastLook>) -> Standby {
        Standby(looks)
    }

    /// Returns the active process; `None` if it is not known now.
    pub fn active(&self) -> Option<ActiveProcess> {
        match &*self.0.borrow() {
            LastLook::ActiveElsewhere(active) => Some(active.clone()),
            LastLook::Failed(_) | LastLook::Taken => None,
        }
    }

    /// Returns the address of the active process's API; `None` if it is not known now.
    pub fn active_address(&self) -> Option<String> {
        self.active()?.address
    }

    /// Describes that this process stands by, and which one is active.
    pub fn describe(&self) -> String {
        match &*self.0.borrow() {
            LastLook::ActiveElsewhere(ActiveProcess { manager, address, since }) => {
                let since = format_rfc3339(*since);
                match address {
                    Some(address) => format!("stands by; active is {address} since {since}"),
                    None => format!(
                        "stands by; active is manager {manager}, whose setting http.public_url is \
                         not set, since {since}"
                    ),
                }
            }
            LastLook::Failed(reason) => format!("stands by; {reason}"),
            LastLook::Taken => "becomes active: it recovers the jobs".to_owned(),
        }
    }

    /// Returns the check of readiness, which fails: only an active process does work.
    pub fn check(&self) -> HealthCheck {
        HealthCheck::new("cluster", false, self.describe())
    }
}

//! Fault after fault on three managers and two servers, under a load that does not end, for as
//! many faults as `tests/soak --managers` says; the ordinary test does a few.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use support::tcp_proxy::{Action, Flow, TcpProxy};

use super::injection::{self, Fault, TERMINATE_ALL, directions, inject, short_pause};
use super::load::{LONG, Load};
use super::{LEASE, Server, manager, proxy_to, query, signal};
use crate::harness::{Daemon, when, within};
use crate::soak::{Chance, number};

/// Two servers: the standby has each commit before it is answered.
pub(super) struct Servers {
    primary: Server,
    standby: Server,
}

impl Servers {
    pub(super) fn start() -> Servers {
        let primary = Server::start();
        let standby = primary.start_standby();
        let servers = Servers { primary, standby };
        servers.make_synchronous();
        servers
    }

    fn make_synchronous(&self) {
        query(&self.primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'");
        query(&self.primary.url, "SELECT pg_reload_conf()");
        within(LONG, "the standby is synchronous", || {
            let state = query(&self.primary.url, "SELECT sync_state FROM pg_stat_replication");
            when(state == "sync", state)
        });
    }

    /// The address of the database on the primary.
    pub(super) fn url(&self) -> &str {
        &self.primary.url
    }

    pub(super) fn restart(&self) {
        self.primary.restart();
    }

    pub(super) fn kill(&self) {
        self.primary.kill();
        self.primary.start_again();
    }

    pub(super) fn kill_standby(&self) {
        self.standby.kill();
        self.standby.start_again();
    }

    /// The primary is gone for good: its standby is promoted, and gets a standby of its own.
    pub(super) fn fail_over<'a>(&mut self, proxies: impl IntoIterator<Item = &'a TcpProxy>) {
        self.primary.kill();
        self.standby.promote();
        for proxy in proxies {
            proxy.lead_to(self.standby.host().parse().unwrap());
            proxy.reset_all();
        }
        let standby = self.standby.start_standby();
        self.primary = std::mem::replace(&mut self.standby, standby);
        self.make_synchronous();
    }
}

/// Where the soak plays.
struct Stage {
    chance: Chance,
    servers: Servers,
    proxies: Vec<TcpProxy>,
    managers: Vec<Daemon>,
    load: Load,
    /// How often a process ended by itself, by its exit code.
    exits: BTreeMap<i32, u64>,
}

impl Stage {
    /// Which manager is active.
    fn active(&mut self) -> usize {
        within(LONG, "a manager is active", || {
            self.revive();
            let mut active = self.managers.iter().enumerate();
            let found = active.find(|(_, manager)| manager.api.answers("/readyz", 200));
            found.map(|(index, _)| index).ok_or("none is ready")
        })
    }

    fn revive(&mut self) {
        injection::revive(&mut self.managers, &mut self.exits);
    }

    fn below(&mut self, end: usize) -> usize {
        self.chance.below(end)
    }

    /// A manager, which may be the active one.
    fn any(&mut self) -> usize {
        self.chance.below(self.managers.len())
    }

    fn trap_commits(&mut self, of: usize, action: Action, times: u32) {
        let caught = (&self.proxies[of], &mut self.managers[of]);
        injection::trap_commits(caught, &mut self.chance, action, times);
    }

    fn stop_for_longer_than_the_lease(&mut self, of: usize) {
        signal("STOP", &self.managers[of]);
        let taken = self.load.taken_count();
        within(LONG, "another one takes over", || {
            when(self.load.taken_count() > taken + 2, "it waits")
        });
        signal("CONT", &self.managers[of]);
    }

    fn cut_off_for_longer_than_the_lease(&mut self, of: usize) {
        for direction in directions(&mut self.chance) {
            self.proxies[of].set_flow(direction, Flow::Stops);
        }
        // What was on its way is taken, and then nothing until another one takes over.
        thread::sleep(LEASE);
        let taken = self.load.taken_count();
        within(LONG, "another one takes over", || {
            when(self.load.taken_count() > taken + 2, "it waits")
        });
        self.proxies[of].set_flows(Flow::Passes);
    }
}

impl injection::Stage for Stage {
    fn chance(&mut self) -> &mut Chance {
        &mut self.chance
    }

    fn recover(&mut self) {
        let until = self.load.taken_count() + 3;
        within(LONG, "the load goes on", || {
            self.revive();
            let taken = self.load.taken_count();
            when(taken >= until, format!("{taken} replies of {until}"))
        });
    }

    fn check(&mut self) {
        let url = self.servers.primary.url.clone();
        within(LONG, "all jobs end", || {
            self.revive();
            self.load.try_rest(&url)
        });
        self.load.assert_sound(&url);
        self.load.forget_checked(&url);
        self.load.go_on();
    }
}

/// Those that need the lease are few.
const FAULTS: [Fault<Stage>; 15] = [
    ("active killed", 20, |stage| {
        let active = stage.active();
        stage.managers[active].kill_if_alive();
        stage.managers[active].spawn_again();
    }),
    ("active killed in a commit", 10, |stage| {
        let active = stage.active();
        stage.trap_commits(active, Action::Hold, 1);
    }),
    ("active stopped for longer than the lease", 15, |stage| {
        let active = stage.active();
        stage.stop_for_longer_than_the_lease(active);
    }),
    ("active cut off for longer than the lease", 10, |stage| {
        let active = stage.active();
        stage.cut_off_for_longer_than_the_lease(active);
    }),
    ("server promoted", 15, |stage| {
        let Stage { servers, proxies, .. } = stage;
        servers.fail_over(&*proxies);
    }),
    ("server restarted", 40, |stage| {
        stage.servers.restart();
    }),
    ("server killed", 40, |stage| {
        stage.servers.kill();
    }),
    ("standby server killed", 30, |stage| {
        stage.servers.kill_standby();
    }),
    ("active asked to end", 120, |stage| {
        let active = stage.active();
        assert_eq!(stage.managers[active].stop().code(), Some(0));
        stage.managers[active].spawn_again();
    }),
    ("any killed that is not active", 50, |stage| {
        let active = stage.active();
        let other = (active + 1 + stage.below(stage.managers.len() - 1)) % stage.managers.len();
        stage.managers[other].kill_if_alive();
        stage.managers[other].spawn_again();
    }),
    ("active stopped for a moment", 150, |stage| {
        let active = stage.active();
        signal("STOP", &stage.managers[active]);
        short_pause(&mut stage.chance);
        signal("CONT", &stage.managers[active]);
    }),
    ("active cut off for a moment", 150, |stage| {
        let active = stage.active();
        for direction in directions(&mut stage.chance) {
            stage.proxies[active].set_flow(direction, Flow::Stops);
        }
        short_pause(&mut stage.chance);
        stage.proxies[active].set_flows(Flow::Passes);
    }),
    ("connections reset", 120, |stage| {
        let any = stage.any();
        stage.proxies[any].reset_all();
    }),
    ("sessions terminated", 80, |stage| {
        query(&stage.servers.primary.url, TERMINATE_ALL);
    }),
    ("connections reset in commits", 150, |stage| {
        let active = stage.active();
        let times = 1 + u32::try_from(stage.below(4)).unwrap();
        stage.trap_commits(active, Action::Reset, times);
    }),
];

#[test]
fn soak_of_several_managers() {
    let (faults, seed) = (number("SOAK_FAULTS", 15), number("SOAK_SEED", 1));
    let count = usize::try_from(number("SOAK_MANAGERS", 3)).unwrap();
    eprintln!("seed {seed}, {faults} faults, {count} managers");
    let servers = Servers::start();
    let (proxies, urls): (Vec<_>, Vec<_>) =
        (0..count).map(|_| proxy_to(&servers.primary.url)).unzip();
    let managers: Vec<Daemon> = urls.iter().map(|url| manager(url).spawn()).collect();
    let load = Load::start(&managers.iter().collect::<Vec<_>>());
    let chance = Chance::new(seed);
    let mut stage = Stage { chance, servers, proxies, managers, load, exits: BTreeMap::new() };
    let begun = Instant::now();
    let seen = inject(&mut stage, &FAULTS, faults);
    let epoch = super::epoch(&stage.servers.primary.url);
    let Stage { load, exits, .. } = &stage;
    eprintln!(
        "==== soak of {count} managers, seed {seed}: {faults} faults in {:.0} s, no violation\n\
         {} jobs; {epoch} times a manager became active; ended by themselves: {exits:?}\n{seen}",
        begun.elapsed().as_secs_f64(),
        load.jobs_checked(),
    );
}

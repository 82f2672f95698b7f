//! Fault after fault on three names of two managers each, on one database and one broker, under a
//! load that does not end and in which the names call each other; for as many faults as
//! `tests/soak --names` says. The ordinary test does a few.

use std::collections::BTreeMap;
use std::time::Instant;

use support::tcp_proxy::{Action, Flow, TcpProxy};

use super::injection::{self, Fault, TERMINATE_ALL, directions, inject, short_pause};
use super::load::LONG;
use super::name_load::{NAMES, NameLoad, workflow};
use super::soak::Servers;
use super::{proxy_to, query, signal};
use crate::amqp::Vhost;
use crate::harness::{Daemon, Setup, when, within};
use crate::soak::{Chance, number};

/// The managers of each name.
const PAIR: usize = 2;

/// A manager, by its name and its place among the managers of the name.
type Place = (usize, usize);

/// Where the soak plays.
struct Stage {
    chance: Chance,
    servers: Servers,
    vhost: Vhost,
    /// Between each manager and the database.
    database: Vec<Vec<TcpProxy>>,
    /// Between each manager and the broker.
    broker: Vec<Vec<TcpProxy>>,
    managers: Vec<Vec<Daemon>>,
    load: NameLoad,
    /// How often a process ended by itself, by its exit code.
    exits: BTreeMap<i32, u64>,
}

impl Stage {
    fn start(seed: u64) -> Stage {
        let (servers, vhost) = (Servers::start(), Vhost::new());
        let (mut database, mut broker, mut managers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, name) in NAMES.iter().enumerate() {
            let pair = || {
                let (to_database, database_url) = proxy_to(servers.url());
                let (to_broker, broker_url) = proxy_to(&vhost.url);
                let setup = Setup::new(&broker_url, &workflow(index));
                let setup = setup.set("journal.url", &database_url).set("cluster.name", name);
                (to_database, to_broker, setup.set("journal.full_retry", "100ms").spawn())
            };
            let mut pairs: (Vec<_>, Vec<_>, Vec<_>) = Default::default();
            for (to_database, to_broker, manager) in (0..PAIR).map(|_| pair()) {
                pairs.0.push(to_database);
                pairs.1.push(to_broker);
                pairs.2.push(manager);
            }
            database.push(pairs.0);
            broker.push(pairs.1);
            managers.push(pairs.2);
        }
        let load = NameLoad::start(&managers, &vhost);
        let chance = Chance::new(seed);
        let exits = BTreeMap::new();
        Stage { chance, servers, vhost, database, broker, managers, load, exits }
    }

    /// Which manager of a name is active.
    fn active_of(&mut self, name: usize) -> Place {
        within(LONG, "a manager is active", || {
            self.revive();
            let mut pair = self.managers[name].iter().enumerate();
            let found = pair.find(|(_, manager)| manager.api.answers("/readyz", 200));
            found.map(|(index, _)| (name, index)).ok_or("none is ready")
        })
    }

    /// The active manager of a name by chance.
    fn active(&mut self) -> Place {
        let name = self.chance.below(NAMES.len());
        self.active_of(name)
    }

    /// Any manager of any name.
    fn any(&mut self) -> Place {
        (self.chance.below(NAMES.len()), self.chance.below(PAIR))
    }

    fn manager(&mut self, (name, index): Place) -> &mut Daemon {
        &mut self.managers[name][index]
    }

    fn revive(&mut self) {
        injection::revive(self.managers.iter_mut().flatten(), &mut self.exits);
    }

    /// How often a name was taken.
    fn epoch(&self, name: usize) -> u64 {
        let sql = format!("SELECT epoch FROM names WHERE name = '{}'", NAMES[name]);
        query(self.servers.url(), &sql).parse().unwrap()
    }

    /// Waits until another manager has the name.
    fn await_successor(&mut self, name: usize, epoch: u64) {
        within(LONG, "another one takes over", || {
            let now = self.epoch(name);
            when(now > epoch, now)
        });
    }

    /// Something is done to the next commits of a manager.
    fn trap_commits(&mut self, (name, index): Place, action: Action, times: u32) {
        let caught = (&self.database[name][index], &mut self.managers[name][index]);
        injection::trap_commits(caught, &mut self.chance, action, times);
    }

    fn kill(&mut self, place: Place) {
        let manager = self.manager(place);
        manager.kill_if_alive();
        manager.spawn_again();
    }
}

impl injection::Stage for Stage {
    fn chance(&mut self) -> &mut Chance {
        &mut self.chance
    }

    fn recover(&mut self) {
        let until = self.load.worked().map(|worked| worked + 2);
        within(LONG, "the load goes on", || {
            self.revive();
            let worked = self.load.worked();
            let goes_on = worked.iter().zip(&until).all(|(worked, until)| worked >= until);
            when(goes_on, format!("{worked:?} messages of {until:?}"))
        });
    }

    fn check(&mut self) {
        let url = self.servers.url().to_owned();
        within(LONG, "all jobs end", || {
            self.revive();
            self.load.try_rest(&url)
        });
        let violations = self.load.violations(&url);
        assert!(violations.is_empty(), "{violations}");
        self.load.go_on();
    }
}

/// Those that need the lease are few.
const FAULTS: [Fault<Stage>; 19] = [
    ("active killed", 15, |stage| {
        let active = stage.active();
        stage.kill(active);
    }),
    ("active of all names killed", 5, |stage| {
        for name in 0..NAMES.len() {
            let active = stage.active_of(name);
            stage.kill(active);
        }
    }),
    ("active killed in a commit", 8, |stage| {
        let active = stage.active();
        stage.trap_commits(active, Action::Hold, 1);
    }),
    ("active stopped for longer than the lease", 10, |stage| {
        let active = stage.active();
        let epoch = stage.epoch(active.0);
        signal("STOP", stage.manager(active));
        stage.await_successor(active.0, epoch);
        signal("CONT", stage.manager(active));
    }),
    ("active cut off from the database for longer than the lease", 10, |stage| {
        let active = stage.active();
        let (name, index) = active;
        let epoch = stage.epoch(name);
        for direction in directions(&mut stage.chance) {
            stage.database[name][index].set_flow(direction, Flow::Stops);
        }
        stage.await_successor(name, epoch);
        stage.database[name][index].set_flows(Flow::Passes);
    }),
    ("active cut off from the broker until it steps down", 7, |stage| {
        let active = stage.active();
        let (name, index) = active;
        let epoch = stage.epoch(name);
        stage.broker[name][index].set_flows(Flow::Stops);
        stage.broker[name][index].reset_all();
        stage.await_successor(name, epoch);
        stage.broker[name][index].set_flows(Flow::Passes);
    }),
    ("server promoted", 15, |stage| {
        let Stage { servers, database, .. } = stage;
        servers.fail_over(database.iter().flatten());
    }),
    ("server restarted", 40, |stage| stage.servers.restart()),
    ("server killed", 40, |stage| stage.servers.kill()),
    ("standby server killed", 30, |stage| stage.servers.kill_standby()),
    ("active asked to end", 120, |stage| {
        let active = stage.active();
        let manager = stage.manager(active);
        assert_eq!(manager.stop().code(), Some(0));
        manager.spawn_again();
    }),
    ("any killed that is not active", 50, |stage| {
        let (name, index) = stage.active();
        stage.kill((name, (index + 1) % PAIR));
    }),
    ("active stopped for a moment", 120, |stage| {
        let active = stage.active();
        signal("STOP", stage.manager(active));
        short_pause(&mut stage.chance);
        signal("CONT", stage.manager(active));
    }),
    ("active cut off from the database for a moment", 120, |stage| {
        let (name, index) = stage.active();
        for direction in directions(&mut stage.chance) {
            stage.database[name][index].set_flow(direction, Flow::Stops);
        }
        short_pause(&mut stage.chance);
        stage.database[name][index].set_flows(Flow::Passes);
    }),
    ("connections to the database reset", 80, |stage| {
        let (name, index) = stage.any();
        stage.database[name][index].reset_all();
    }),
    ("sessions terminated", 60, |stage| {
        query(stage.servers.url(), TERMINATE_ALL);
    }),
    ("connections reset in commits", 100, |stage| {
        let active = stage.active();
        let times = 1 + u32::try_from(stage.chance.below(4)).unwrap();
        stage.trap_commits(active, Action::Reset, times);
    }),
    ("active cut off from the broker for a moment", 90, |stage| {
        let (name, index) = stage.active();
        for direction in directions(&mut stage.chance) {
            stage.broker[name][index].set_flow(direction, Flow::Stops);
        }
        short_pause(&mut stage.chance);
        stage.broker[name][index].set_flows(Flow::Passes);
    }),
    ("connections to the broker reset", 80, |stage| {
        let (name, index) = stage.any();
        stage.broker[name][index].reset_all();
    }),
];

#[test]
fn soak_of_several_names() {
    let (faults, seed) = (number("SOAK_FAULTS", 12), number("SOAK_SEED", 1));
    let names = NAMES.len();
    eprintln!("seed {seed}, {faults} faults, {names} names of {PAIR} managers");
    let mut stage = Stage::start(seed);
    let begun = Instant::now();
    let seen = inject(&mut stage, &FAULTS, faults);
    stage.load.assert_drained(&stage.vhost);
    let epochs: Vec<u64> = (0..names).map(|name| stage.epoch(name)).collect();
    let jobs = query(stage.servers.url(), "SELECT count(*) FROM jobs");
    eprintln!(
        "==== soak of {names} names, seed {seed}: {faults} faults in {:.0} s, no violation\n\
         {jobs} jobs, of which {} were asked for by clients; so often a manager of each name \
         became active: {epochs:?}; ended by themselves: {:?}\n{seen}",
        begun.elapsed().as_secs_f64(),
        stage.load.answered_count(),
        stage.exits,
    );
}

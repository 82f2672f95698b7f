//! Defaults that depend on other settings: the reply queues of a manager with a name, and the
//! heartbeat of one that another machine may replace.

use super::buses::BusSettings;
use super::root::Settings;
use super::sources::{Source, Sources};
use amqp::AmqpSection;
use base::values::DurationSetting;
use std::time::Duration;

/// The default of `cluster.name`.
const DEFAULT_NAME: &str = "default";

/// The default of `heartbeat` with a journal in PostgreSQL: the broker must notice soon that the
/// machine of a manager is gone, because it keeps the replies from the next one until then.
const CLUSTER_HEARTBEAT: Duration = Duration::from_secs(10);

/// What other queues have at the end of their names, after the name of a reply queue and a dot.
const RESERVED_ENDINGS: [&str; 2] = ["unreadable", "doctor"];

impl Settings {
    /// Sets the defaults that depend on `cluster.name` and `journal.url`, where no source sets the
    /// value itself.
    pub(super) fn with_cluster_defaults(self) -> Settings {
        let Settings { cluster, journal, mut amqp, mut buses, mut kafka, sources, .. } = self;
        let ending = (cluster.name != DEFAULT_NAME).then(|| format!(".{}", cluster.name));
        let heartbeat = (!journal.url.0.is_empty()).then_some(CLUSTER_HEARTBEAT);
        let name_replies = |setting: String, queue: &mut String| {
            if let Some(ending) = &ending
                && is_default(&sources, &setting)
            {
                queue.push_str(ending);
            }
        };
        let apply = |prefix: &str, section: &mut AmqpSection| {
            name_replies(format!("{prefix}.reply_queue"), &mut section.reply_queue);
            if let Some(heartbeat) = heartbeat
                && is_default(&sources, &format!("{prefix}.heartbeat"))
            {
                section.heartbeat = DurationSetting(heartbeat);
            }
        };
        apply("amqp", &mut amqp);
        name_replies("kafka.reply_topic".to_owned(), &mut kafka.reply_topic);
        for (name, bus) in &mut buses {
            match bus {
                BusSettings::Amqp(section) => apply(&format!("buses.{name}"), section),
                BusSettings::Kafka(section) => {
                    name_replies(format!("buses.{name}.reply_topic"), &mut section.reply_topic);
                }
                BusSettings::Push(_) => {}
            }
        }
        Settings { cluster, journal, amqp, buses, kafka, sources, ..self }
    }

    /// Checks that no other queue of a manager has the name of this one's reply queue.
    pub(super) fn check_cluster_name(&self) -> Result<(), String> {
        let name = &self.cluster.name;
        let last_part = name.rsplit('.').next().unwrap_or(name);
        if RESERVED_ENDINGS.contains(&last_part) {
            return Err(format!(
                "cluster.name is \"{name}\": a queue of another manager ends in \"{last_part}\" \
                 too; choose another name"
            ));
        }
        Ok(())
    }
}

fn is_default(sources: &Sources, setting: &str) -> bool {
    sources.find(setting).0 == Source::Default
}

#[cfg(test)]
mod tests {
    use super::super::Overrides;
    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("the file is written");
        Settings::load(Some(file.path()), &Overrides::default()).map_err(|error| error.to_string())
    }

    /// The reply queues of the buses `amqp` and `more`, and the reply topic.
    fn reply_queues(text: &str) -> [String; 3] {
        let buses = "buses: { more: { kind: amqp, server: 'amqp://more' } }";
        let settings = load(&format!("{text}\n{buses}")).expect("settings");
        let more = settings.amqp_bus("more").expect("the bus").reply_queue.clone();
        [settings.amqp.reply_queue, more, settings.kafka.reply_topic]
    }

    #[test]
    fn the_name_of_the_manager_is_part_of_its_reply_queues() {
        assert_eq!(reply_queues("bus: ''"), ["workflow-manager"; 3]);
        assert_eq!(reply_queues("cluster: { name: default }"), ["workflow-manager"; 3]);
        assert_eq!(reply_queues("cluster: { name: north }"), ["workflow-manager.north"; 3]);
    }

    #[test]
    fn a_reply_queue_of_the_settings_wins() {
        let text = "cluster: { name: north }\namqp: { server: 'amqp://a', reply_queue: mine }";
        assert_eq!(reply_queues(text)[..2], ["mine", "workflow-manager.north"]);
        // Even if it is the default one.
        let text =
            "cluster: { name: north }\namqp: { server: 'amqp://a', reply_queue: workflow-manager }";
        assert_eq!(reply_queues(text)[..1], ["workflow-manager"]);
    }

    #[test]
    fn a_name_that_would_mix_two_queues_is_rejected() {
        for name in ["unreadable", "north.unreadable", "doctor"] {
            let error = load(&format!("cluster: {{ name: {name} }}")).expect_err(name);
            assert!(error.contains("cluster.name") && error.contains("another name"), "{error}");
        }
        assert!(load("cluster: { name: unreadable.north }").is_ok());
    }

    #[test]
    fn the_heartbeat_is_short_with_a_database() {
        let heartbeats = |text: &str| {
            let text = format!("{text}\nbuses: {{ more: {{ kind: amqp, server: 'amqp://b' }} }}");
            let settings = load(&text).expect("settings");
            let more = settings.amqp_bus("more").expect("the bus").heartbeat.0.as_secs();
            [settings.amqp.heartbeat.0.as_secs(), more]
        };
        let url = "journal: { url: 'postgres://me@db/wm' }";
        assert_eq!(heartbeats("bus: ''"), [30, 30]);
        assert_eq!(heartbeats(url), [10, 10]);
        assert_eq!(heartbeats(&format!("{url}\namqp: {{ heartbeat: 30s }}")), [30, 10]);
    }
}

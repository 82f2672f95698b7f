//! The stop of the manager, as workers see it.

use super::*;
use tonic::Code;
use workflow_manager::grpc::wire::Kind;

#[test]
fn at_a_stop_workers_finish_what_they_have() {
    served(
        |settings| settings.grpc.drain = DurationSetting(DEADLINE),
        |rig| async move {
            let mut idle = rig.worker(&["price"]).await;
            let mut busy = rig.worker(&["price"]).await;
            busy.want(1);
            let id = rig.create("orders", "{}").await;
            let message = busy.message().await;
            idle.want(9);
            let stop = tokio::task::spawn_local({
                let rig = rig.clone();
                async move { rig.stop().await }
            });
            for worker in [&mut idle, &mut busy] {
                assert!(matches!(worker.receive().await, Ok(Some(Tell::Drain(_)))));
            }
            assert_eq!(idle.receive().await.expect("ends well"), None, "it has nothing in hand");
            // It is leased no more.
            rig.create("orders", "{}").await;
            rig.until("/api/queue/price", |queue| queue["messages"] == 1).await;
            busy.want(5);
            busy.reply(&message.receipt, Kind::Result, "{}");
            assert!(taken(&mut busy).await.changed);
            assert_eq!(busy.receive().await.expect("ends well"), None);
            stop.await.expect("stopped");
            rig.job(&id, |job| job["state"] == "completed").await;
        },
    );
}

#[test]
fn a_worker_that_is_slow_at_a_stop_is_told_to_come_back() {
    served(
        |settings| settings.grpc.drain = DurationSetting(Duration::from_millis(50)),
        |rig| async move {
            let mut busy = rig.worker(&["price"]).await;
            busy.want(1);
            rig.create("orders", "{}").await;
            busy.message().await;
            rig.stop().await;
            assert!(matches!(busy.receive().await, Ok(Some(Tell::Drain(_)))));
            let told = refused(&mut busy).await;
            assert_eq!(told.code(), Code::Unavailable);
            assert!(told.message().contains("connect again"), "{told}");
        },
    );
}

//! What an application does with the Rust client, each once, as JSON lines on standard output.
//!
//! `driver NAMESRV` sends to the topics `rust-plain`, `rust-orderly` and `rust-popped`, consumes them by push with
//! queues divided by the clients, orderly, and by pop, and ends at SIGTERM. The topics exist before.

use std::any::Any;
use std::sync::Arc;

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer, LocalTransactionState,
    MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly, MessageQueueSelector,
    SelectMessageQueueByHash, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;

const PLAIN: &str = "rust-plain";
const ORDERLY: &str = "rust-orderly";
const POPPED: &str = "rust-popped";
const MANY: usize = 100;
const STEPS: usize = 5;

fn emit(event: &str, what: &str) {
    println!("{{\"event\": {event:?}, \"what\": {what:?}}}");
}

fn message(topic: &str, text: &str) -> Message {
    Message::builder().topic(topic).tags("rust").key(text).body_slice(text.as_bytes()).build_unchecked()
}

fn text(message: &MessageExt) -> String {
    let body = message.body().expect("a message of this program has a body");
    String::from_utf8_lossy(&body).into_owned()
}

/// Tells of each message, and fails once on the one whose body is `again`.
struct Listener(&'static str);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            let text = text(message);
            if text == "again" && message.reconsume_times() == 0 {
                return Ok(ConsumeConcurrentlyStatus::ReconsumeLater);
            }
            emit(self.0, &text);
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        messages.iter().for_each(|message| emit(self.0, &text(message)));
        Ok(ConsumeOrderlyStatus::Success)
    }
}

/// Leaves every transaction open, so that the broker has to ask.
struct Ledger;

impl TransactionListener for Ledger {
    fn execute_local_transaction(
        &self,
        _message: &dyn MessageTrait,
        _arg: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        LocalTransactionState::Unknown
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let text = text(message);
        emit("asked", &text);
        match text.as_str() {
            "commit" => LocalTransactionState::CommitMessage,
            _ => LocalTransactionState::RollbackMessage,
        }
    }
}

async fn consume(
    runtime: &Arc<ClientRuntime>,
    namesrv: &str,
    topic: &str,
    divides: bool,
) -> ClientResult<DefaultMQPushConsumer> {
    let mut consumer = DefaultMQPushConsumer::builder(runtime.clone())
        .consumer_group(format!("{topic}-group"))
        .name_server_addr(namesrv.to_string())
        .client_rebalance(divides)
        .build();
    consumer.subscribe(topic, "rust || other").await?;
    match topic {
        ORDERLY => consumer.register_message_listener_orderly(Listener("orderly")),
        POPPED => consumer.register_message_listener_concurrently(Listener("popped")),
        _ => consumer.register_message_listener_concurrently(Listener("plain")),
    }
    consumer.start().await?;
    Ok(consumer)
}

async fn produce(producer: &mut DefaultMQProducer) -> ClientResult<()> {
    for number in 0..MANY {
        for topic in [PLAIN, POPPED] {
            let result = producer.send_with_timeout(message(topic, &format!("{number}")), 10_000).await?;
            emit("sent", &format!("{:?}", result.expect("a send that waits has a result").send_status));
        }
    }
    let batch = (0..3).map(|number| message(PLAIN, &format!("batch {number}"))).collect::<Vec<_>>();
    producer.send_batch(batch).await?;
    for step in 0..STEPS {
        let select = SelectMessageQueueByHash;
        producer
            .send_with_selector(
                message(ORDERLY, &format!("step {step}")),
                |queues, message, key| select.select(queues, message, key),
                &"one order",
            )
            .await?;
    }
    let mut delayed = message(PLAIN, "delayed");
    delayed.set_delay_time_level(1);
    producer.send_with_timeout(delayed, 10_000).await?;
    producer.send_with_timeout(message(PLAIN, "again"), 10_000).await?;
    emit("produced", "all");
    Ok(())
}

async fn work(runtime: &Arc<ClientRuntime>, namesrv: &str) -> ClientResult<()> {
    let mut consumers = vec![
        consume(runtime, namesrv, PLAIN, true).await?,
        consume(runtime, namesrv, ORDERLY, true).await?,
        consume(runtime, namesrv, POPPED, false).await?,
    ];
    let mut producer = DefaultMQProducer::builder(runtime.clone())
        .producer_group("rust-producers")
        .name_server_addr(namesrv.to_string())
        .build();
    producer.start().await?;
    produce(&mut producer).await?;
    let mut ledger = TransactionMQProducer::builder(runtime.clone())
        .producer_group("rust-ledger")
        .name_server_addr(namesrv.to_string())
        .topics(vec![PLAIN])
        .transaction_listener(Ledger)
        .build();
    ledger.start().await?;
    for text in ["commit", "roll back"] {
        ledger.send_message_in_transaction::<(), _>(message(PLAIN, text), None).await?;
    }
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("signals");
    end.recv().await;
    for consumer in &mut consumers {
        consumer.shutdown().await;
    }
    ledger.shutdown().await;
    producer.shutdown().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let namesrv = std::env::args().nth(1).ok_or("usage: driver NAMESRV")?;
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("driver"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let result = owner.block_on(async {
        let result = work(&runtime, &namesrv).await;
        runtime.shutdown().await;
        result
    });
    owner.shutdown_runtime_blocking()?;
    Ok(result?)
}

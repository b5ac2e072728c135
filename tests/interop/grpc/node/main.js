// The official Node client, driven from the command line; see ../README.md for the commands.
'use strict';

const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [ command, ...words ] = process.argv.slice(2);
const options = { group: 'g', count: '1', kind: 'normal', prefix: 'm', sql: '', fail: '', timeout: '60', 'delay-ms': '3000' };
for (let i = 0; i < words.length; i += 2) options[words[i].slice(2)] = words[i + 1];
const count = Number(options.count);
const quiet = { info() {}, warn() {}, debug() {}, error: (...text) => console.error(...text) };

const tell = (event, fields = {}) => process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
const sleep = ms => new Promise(done => setTimeout(done, ms));

function base() {
  const given = { endpoints: options.endpoint, namespace: '', sslEnabled: options.tls === 'true', logger: quiet };
  if (options.key) given.sessionCredentials = { accessKey: options.key, accessSecret: options.secret };
  return given;
}

function make(number) {
  const message = {
    topic: options.topic,
    body: Buffer.from(`${options.prefix}-${number}`),
    tag: number % 2 === 0 ? 'even' : 'odd',
    keys: [ `key-${number}` ],
    properties: new Map([[ 'n', String(number) ]]),
  };
  if (options.kind === 'fifo') message.messageGroup = `group-${number % 3}`;
  if (options.kind === 'delay' || options.kind === 'recall') message.delay = Number(options['delay-ms']);
  return message;
}

const checker = resolution => ({
  async check(message) {
    tell('checked', { body: message.body.toString() });
    return resolution;
  },
});

async function send() {
  // Asked before it has ended a transaction, it does not know.
  const unknown = checker(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED);
  const producer = new Producer({ ...base(), topics: [ options.topic ], checker: unknown });
  await producer.startup();
  for (let number = 0; number < count; number++) {
    const message = make(number);
    const body = message.body.toString();
    let receipt;
    if ([ 'commit', 'rollback', 'orphan' ].includes(options.kind)) {
      const transaction = producer.beginTransaction();
      receipt = await producer.send(message, transaction);
      if (options.kind === 'commit') await transaction.commit();
      if (options.kind === 'rollback') await transaction.rollback();
    } else {
      receipt = await producer.send(message);
    }
    tell('sent', { body, id: receipt.messageId });
    if (options.kind === 'recall') {
      await producer.recallMessage(options.topic, receipt.recallHandle);
      tell('recalled', { body });
    }
  }
  tell('summary', { count });
  if (options.kind !== 'orphan') await producer.shutdown();
}

async function check() {
  const commit = checker(TransactionResolution.COMMIT);
  const producer = new Producer({ ...base(), topics: [ options.topic ], checker: commit });
  await producer.startup();
  tell('ready');
  await sleep(Number(options.timeout) * 1000);
  await producer.shutdown();
}

function received(message) {
  tell('received', {
    body: message.body.toString(), attempt: message.deliveryAttempt, tag: message.tag, group: message.messageGroup || '',
    properties: Object.fromEntries(message.properties || []),
  });
}

const expression = () => (options.sql ? new FilterExpression(options.sql, FilterType.SQL) : '*');

async function simple() {
  const consumer = new SimpleConsumer({
    ...base(), consumerGroup: options.group, subscriptions: new Map([[ options.topic, expression() ]]), awaitDuration: 5000,
  });
  await consumer.startup();
  tell('ready');
  let got = 0;
  const deadline = Date.now() + Number(options.timeout) * 1000;
  while (got < count && Date.now() < deadline) {
    let messages = [];
    try {
      messages = await consumer.receive(32, 20000);
    } catch (error) {
      tell('failed', { reason: String(error) });
      await sleep(500);
    }
    for (const message of messages) {
      received(message);
      await consumer.ack(message);
      got++;
    }
  }
  tell('summary', { count: got });
  await consumer.shutdown();
}

async function push() {
  let got = 0;
  const consumer = new PushConsumer({
    ...base(), consumerGroup: options.group, subscriptions: new Map([[ options.topic, expression() ]]),
    messageListener: {
      async consume(message) {
        received(message);
        got++;
        const fails = options.fail && message.body.toString().startsWith(options.fail);
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  tell('ready');
  const deadline = Date.now() + Number(options.timeout) * 1000;
  while (got < count && Date.now() < deadline) await sleep(50);
  await sleep(1000);
  tell('summary', { count: got });
  await consumer.shutdown();
}

({ send, check, simple, push })[command]().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});

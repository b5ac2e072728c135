'use strict';

const { Producer, Message } = require('ali-ons');
const { clientOptions, stopSignal } = require('./client');
const { emit } = require('./jsonlines');
const sample = require('./sample');

/** Send messages number start to start + count - 1, each after the answer to the one before. */
module.exports = async options => {
  const topic = options.text('topic');
  const start = options.number('start', 0);
  const count = options.number('count');
  const level = options.number('level', 0);
  const producer = new Producer({ ...clientOptions(options), producerGroup: options.text('group') });
  producer.on('error', error => console.error(error));
  let stopped = false;
  stopSignal().then(() => { stopped = true; });
  await producer.ready();

  let sent = 0;
  let failed = 0;
  for (let index = start; index < start + count && !stopped; index++) {
    try {
      const result = await producer.send(message(topic, index, level));
      emit('sent', {
        index, msgId: result.msgId, queueId: Number(result.messageQueue.queueId),
        queueOffset: Number(result.queueOffset), status: result.sendStatus,
      });
      sent++;
    } catch (error) {
      emit('failed', { index, error: String(error) });
      failed++;
    }
  }
  await producer.close();
  emit('summary', { sent, failed });
  return sent === count ? 0 : 1;
};

function message(topic, index, level) {
  const result = new Message(topic, sample.tag(index), sample.body(index));
  result.keys = [ sample.key(index) ];
  if (level > 0) result.delayTimeLevel = level;
  result.properties.index = String(index);
  result.properties.text = sample.text(index);
  return result;
}

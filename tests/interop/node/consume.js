'use strict';

const { setTimeout: sleep } = require('timers/promises');
const { Consumer } = require('ali-ons');
const { clientOptions, stopSignal } = require('./client');
const Expectation = require('./expectation');
const { emit } = require('./jsonlines');
const sample = require('./sample');

/** Push consumers of one group, from the first offset, until every expected message arrived or time is up. */
module.exports = async options => {
  const tags = options.text('tags', '*');
  const expectation = new Expectation(options.number('start', 0), options.number('expect'), tags);
  const members = [];
  for (let number = 0; number < options.number('members', 1); number++) {
    const name = `member-${number}-${process.pid}`;
    const member = new Consumer({
      ...clientOptions(options),
      consumerGroup: options.text('group'),
      instanceName: name,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    });
    member.on('error', error => console.error(error));
    member.subscribe(options.text('topic'), tags, async message => {
      expectation.received(report(message, name));
    });
    await member.ready();
    members.push(member);
  }
  emit('started', { members: members.length });

  const complete = await Promise.race([
    expectation.complete,
    sleep(options.number('timeout') * 1000, false),
    stopSignal().then(() => false),
  ]);
  // What arrives now is surplus; a test wants to see it.
  if (complete) await sleep(options.number('linger-ms', 500));
  for (const member of members) await member.close();
  expectation.summarise();
  return complete ? 0 : 1;
};

/** Print what arrived and return its index, -1 if it has none. */
function report(message, member) {
  const index = message.properties.index === undefined ? -1 : Number(message.properties.index);
  emit('received', {
    index, tag: message.tags, key: message.keys,
    textOk: message.properties.text === sample.text(index),
    bodyOk: index >= 0 && sample.body(index).equals(message.body),
    msgId: message.msgId, queueId: message.queueId, queueOffset: message.queueOffset,
    reconsumeTimes: message.reconsumeTimes, member,
    waited: message.storeTimestamp - message.bornTimestamp,
  });
  return index;
}

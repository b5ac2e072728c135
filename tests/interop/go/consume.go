package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume runs push consumers of one group, from the first offset, until every expected message
// arrived or time is up.
func consume(arguments []string) error {
	o := newOptions("consume")
	expect := o.Int("expect", 0, "how many distinct messages to wait for")
	timeout := o.Int("timeout", 60, "seconds to wait for them")
	linger := o.Int("linger-ms", 500, "how long to listen for surplus messages afterwards")
	count := o.Int("members", 1, "how many consumers")
	tags := o.String("tags", "*", "tag expression")
	sql := o.String("sql", "", "SQL92 condition to subscribe with; tags then only say what to expect")
	o.Parse(arguments)

	waiting := newExpectation(o.start, *expect, *tags)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: *tags}
	if *sql != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: *sql}
	}
	for number := 0; number < *count; number++ {
		member, err := startMember(o, selector, fmt.Sprintf("member-%d-%d", number, os.Getpid()), waiting)
		if err != nil {
			return err
		}
		defer member.Shutdown()
	}
	emit("started", fields{"members": *count})

	stop := stopSignal()
	defer waiting.summarise()
	select {
	case <-waiting.complete:
		time.Sleep(time.Duration(*linger) * time.Millisecond)
		return nil
	case <-time.After(time.Duration(*timeout) * time.Second):
		return errors.New("time is up")
	case <-stop:
		return errors.New("asked to stop")
	}
}

func startMember(
	o *options, selector consumer.MessageSelector, name string, waiting *expectation,
) (rocketmq.PushConsumer, error) {
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(o.resolver()),
		consumer.WithGroupName(o.group),
		consumer.WithInstance(name),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			waiting.received(report(message, name))
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := member.Subscribe(o.topic, selector, listen); err != nil {
		return nil, err
	}
	return member, member.Start()
}

// report prints what arrived and returns its index, -1 if it has none.
func report(message *primitive.MessageExt, member string) int {
	index, err := strconv.Atoi(message.GetProperty("index"))
	if err != nil {
		index = -1
	}
	emit("received", fields{
		"index": index, "tag": message.GetTags(), "key": message.GetKeys(),
		"textOk": message.GetProperty("text") == sampleText(index),
		"bodyOk": index >= 0 && bytes.Equal(message.Body, sampleBody(index)),
		"msgId":  message.MsgId, "queueId": message.Queue.QueueId, "queueOffset": message.QueueOffset,
		"reconsumeTimes": message.ReconsumeTimes, "member": member,
		"waited": message.StoreTimestamp - message.BornTimestamp,
	})
	return index
}

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// transaction sends one message in a transaction for each of the outcomes (commit, rollback or unknown), then
// stays for a while and gives one answer to every question of the broker.
func transaction(arguments []string) error {
	o := newOptions("transaction")
	outcomes := o.String("outcomes", "", "commit, rollback or unknown for each message, with commas")
	answer := o.String("answer", "unknown", "what the broker is told when it asks")
	stay := o.Int("stay", 0, "seconds to stay")
	o.Parse(arguments)
	client, err := rocketmq.NewTransactionProducer(
		&listener{answer: states[*answer]},
		producer.WithNsResolver(o.resolver()),
		producer.WithGroupName(o.group),
		producer.WithInstanceName(fmt.Sprintf("producer-%d", os.Getpid())),
	)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()

	for number, outcome := range strings.Split(*outcomes, ",") {
		message := sampleMessage(o.topic, o.start+number)
		message.WithProperty("outcome", outcome)
		result, err := client.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return err
		}
		emit("sent", fields{"index": o.start + number, "status": statusNames[result.Status], "msgId": result.MsgID})
	}
	emit("all-sent", fields{})
	select {
	case <-time.After(time.Duration(*stay) * time.Second):
	case <-stopSignal():
	}
	return nil
}

var states = map[string]primitive.LocalTransactionState{
	"commit":   primitive.CommitMessageState,
	"rollback": primitive.RollbackMessageState,
	"unknown":  primitive.UnknowState,
}

type listener struct {
	answer primitive.LocalTransactionState
}

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return states[message.GetProperty("outcome")]
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	index, _ := strconv.Atoi(message.GetProperty("index"))
	emit("checked", fields{"index": index, "topic": message.Topic, "transactionId": message.TransactionId})
	return l.answer
}

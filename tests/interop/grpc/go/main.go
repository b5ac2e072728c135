// The official Go client of RocketMQ 5, driven from the command line; see ../README.md for the commands.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var options = map[string]string{
	"group": "g", "count": "1", "kind": "normal", "prefix": "m", "sql": "", "fail": "", "timeout": "60",
	"delay-ms": "3000", "tls": "false", "key": "", "secret": "",
}
var output sync.Mutex

func tell(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(name string) int {
	value, err := strconv.ParseFloat(options[name], 64)
	must(err)
	return int(value)
}

func seconds() time.Duration { return time.Duration(number("timeout")) * time.Second }

func config() *rmq.Config {
	given := &rmq.Config{Endpoint: options["endpoint"], ConsumerGroup: options["group"],
		Credentials: &credentials.SessionCredentials{}}
	if options["key"] != "" {
		given.Credentials = &credentials.SessionCredentials{AccessKey: options["key"], AccessSecret: options["secret"]}
	}
	return given
}

func newProducer(resolution rmq.TransactionResolution) rmq.Producer {
	producer, err := rmq.NewProducer(config(), rmq.WithTopics(options["topic"]),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(message *rmq.MessageView) rmq.TransactionResolution {
				tell("checked", map[string]any{"body": string(message.GetBody())})
				return resolution
			},
		}))
	must(err)
	must(producer.Start())
	return producer
}

func newMessage(i int) *rmq.Message {
	message := &rmq.Message{Topic: options["topic"], Body: []byte(options["prefix"] + "-" + strconv.Itoa(i))}
	message.SetTag([]string{"even", "odd"}[i%2])
	message.SetKeys("key-" + strconv.Itoa(i))
	message.AddProperty("n", strconv.Itoa(i))
	switch options["kind"] {
	case "fifo":
		message.SetMessageGroup("group-" + strconv.Itoa(i%3))
	case "delay", "recall":
		message.SetDelayTimestamp(time.Now().Add(time.Duration(number("delay-ms")) * time.Millisecond))
	}
	return message
}

func send() {
	// Asked before it has ended a transaction, it does not know.
	producer, kind := newProducer(rmq.UNKNOWN), options["kind"]
	ctx := context.Background()
	for i := 0; i < number("count"); i++ {
		message := newMessage(i)
		var receipts []*rmq.SendReceipt
		var err error
		if kind == "commit" || kind == "rollback" || kind == "orphan" {
			transaction := producer.BeginTransaction()
			receipts, err = producer.SendWithTransaction(ctx, message, transaction)
			must(err)
			if kind == "commit" {
				must(transaction.Commit())
			} else if kind == "rollback" {
				must(transaction.RollBack())
			}
		} else {
			receipts, err = producer.Send(ctx, message)
			must(err)
		}
		tell("sent", map[string]any{"body": string(message.Body), "id": receipts[0].MessageID})
		if kind == "recall" {
			_, err = producer.Recall(ctx, options["topic"], receipts[0].RecallHandle)
			must(err)
			tell("recalled", map[string]any{"body": string(message.Body)})
		}
	}
	tell("summary", map[string]any{"count": number("count")})
	if kind != "orphan" {
		producer.GracefulStop()
	}
}

func check() {
	newProducer(rmq.COMMIT)
	tell("ready", nil)
	time.Sleep(seconds())
}

func received(message *rmq.MessageView) {
	text := func(value *string) string {
		if value == nil {
			return ""
		}
		return *value
	}
	tell("received", map[string]any{"body": string(message.GetBody()), "attempt": message.GetDeliveryAttempt(),
		"tag": text(message.GetTag()), "group": text(message.GetMessageGroup()), "properties": message.GetProperties()})
}

func expressions() map[string]*rmq.FilterExpression {
	expression := rmq.SUB_ALL
	if options["sql"] != "" {
		expression = rmq.NewFilterExpressionWithType(options["sql"], rmq.SQL92)
	}
	return map[string]*rmq.FilterExpression{options["topic"]: expression}
}

func simple() {
	consumer, err := rmq.NewSimpleConsumer(config(), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(expressions()))
	must(err)
	must(consumer.Start())
	tell("ready", nil)
	got, deadline := 0, time.Now().Add(seconds())
	for got < number("count") && time.Now().Before(deadline) {
		messages, err := consumer.Receive(context.Background(), 32, 20*time.Second)
		if err != nil {
			if !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
				tell("failed", map[string]any{"reason": err.Error()})
			}
			time.Sleep(100 * time.Millisecond)
		}
		for _, message := range messages {
			received(message)
			must(consumer.Ack(context.Background(), message))
			got++
		}
	}
	tell("summary", map[string]any{"count": got})
	consumer.GracefulStop()
}

func push() {
	var got atomic.Int32
	consumer, err := rmq.NewPushConsumer(config(), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(expressions()),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
				received(message)
				got.Add(1)
				if options["fail"] != "" && strings.HasPrefix(string(message.GetBody()), options["fail"]) {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}))
	must(err)
	must(consumer.Start())
	tell("ready", nil)
	deadline := time.Now().Add(seconds())
	for int(got.Load()) < number("count") && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(time.Second)
	tell("summary", map[string]any{"count": got.Load()})
	consumer.GracefulStop()
}

func main() {
	for i := 2; i+1 < len(os.Args); i += 2 {
		options[os.Args[i][2:]] = os.Args[i+1]
	}
	rmq.EnableSsl = options["tls"] == "true"
	map[string]func(){"send": send, "check": check, "simple": simple, "push": push}[os.Args[1]]()
	os.Exit(0)
}

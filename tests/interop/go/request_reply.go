package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// requestReply lets one client answer every question on a topic while another asks and waits for the answers.
func requestReply(arguments []string) error {
	o := newOptions("request-reply")
	count := o.Int("count", 1, "how many questions")
	o.Parse(arguments)
	replier, err := startProducer(o, "repliers")
	if err != nil {
		return err
	}
	defer replier.Shutdown()
	answering, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(o.resolver()), consumer.WithGroupName(o.group))
	if err != nil {
		return err
	}
	answer := func(_ context.Context, questions ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, question := range questions {
			reply, err := consumer.CreateReplyMessage(question, nil)
			if err == nil {
				// The function above takes the body that it is given for properties.
				reply.Body = append([]byte("answer to "), question.Body...)
				_, err = replier.SendSync(context.Background(), reply)
			}
			if err != nil {
				emit("failed", fields{"error": err.Error()})
				continue
			}
			emit("replied", fields{"status": "SEND_OK"})
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := answering.Subscribe(o.topic, consumer.MessageSelector{}, answer); err != nil {
		return err
	}
	if err := answering.Start(); err != nil {
		return err
	}
	defer answering.Shutdown()

	asker, err := startProducer(o, "askers")
	if err != nil {
		return err
	}
	defer asker.Shutdown()
	// A reply finds only a client that the broker knows. This one tells brokers that it is there one second after
	// its start, and only those whose address it has learnt by sending something.
	if _, err := asker.SendSync(context.Background(), primitive.NewMessage(o.topic+"-hello", []byte("hello"))); err != nil {
		return err
	}
	time.Sleep(1500 * time.Millisecond)
	for number := 0; number < *count; number++ {
		question := fmt.Sprintf("question %d", number)
		message := primitive.NewMessage(o.topic, []byte(question))
		got, err := asker.Request(context.Background(), 20*time.Second, message)
		if err != nil {
			return err
		}
		emit("answered", fields{"question": question, "answer": string(got.Body)})
	}
	return nil
}

func startProducer(o *options, group string) (rocketmq.Producer, error) {
	client, err := rocketmq.NewProducer(
		producer.WithNsResolver(o.resolver()), producer.WithGroupName(group), producer.WithInstanceName(group),
	)
	if err != nil {
		return nil, err
	}
	return client, client.Start()
}

package main

import (
	"context"
	"fmt"
	"strconv"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// produce sends messages number start to start+count-1, each after the answer to the one before.
func produce(arguments []string) error {
	o := newOptions("produce")
	count := o.Int("count", 0, "how many messages")
	level := o.Int("level", 0, "delay level")
	o.Parse(arguments)
	client, err := rocketmq.NewProducer(producer.WithNsResolver(o.resolver()), producer.WithGroupName(o.group))
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()

	stop := stopSignal()
	sent, failed := 0, 0
	for index := o.start; index < o.start+*count && len(stop) == 0; index++ {
		message := sampleMessage(o.topic, index)
		if *level > 0 {
			message.WithDelayTimeLevel(*level)
		}
		result, err := client.SendSync(context.Background(), message)
		if err != nil {
			emit("failed", fields{"index": index, "error": err.Error()})
			failed++
			continue
		}
		emit("sent", fields{
			"index": index, "msgId": result.MsgID, "queueId": result.MessageQueue.QueueId,
			"queueOffset": result.QueueOffset, "status": statusNames[result.Status],
		})
		sent++
	}
	emit("summary", fields{"sent": sent, "failed": failed})
	if sent != *count {
		return fmt.Errorf("sent %d of %d messages", sent, *count)
	}
	return nil
}

// statusNames are RocketMQ's names, where this client only has numbers.
var statusNames = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
	primitive.SendUnknownError:      "UNKNOWN_ERROR",
}

func sampleMessage(topic string, index int) *primitive.Message {
	message := primitive.NewMessage(topic, sampleBody(index))
	message.WithTag(sampleTag(index))
	message.WithKeys([]string{sampleKey(index)})
	message.WithProperty("index", strconv.Itoa(index))
	message.WithProperty("text", sampleText(index))
	return message
}

// Tests of a program that uses RocketMQ's own Go client, with VernierMQ as its broker: go test
package shop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// broker is a VernierMQ for tests: pip install verniermq brings the command. It ends when the test run does.
var broker struct {
	Namesrv  string
	commands io.Writer
	answers  *bufio.Reader
}

func TestMain(m *testing.M) {
	store, _ := os.MkdirTemp("", "verniermq")
	process := exec.Command("verniermq", "broker", "--for-tests", "--port", "0", "--namesrv-port", "0", "--store", store)
	process.Stderr = os.Stderr
	broker.commands, _ = process.StdinPipe()
	output, _ := process.StdoutPipe()
	broker.answers = bufio.NewReader(output)
	if err := process.Start(); err != nil {
		panic(err)
	}
	ready, _ := broker.answers.ReadBytes('\n')
	if err := json.Unmarshal(ready, &broker); err != nil {
		panic(err)
	}
	code := m.Run()
	ask("stop")
	process.Wait()
	os.RemoveAll(store)
	os.Exit(code)
}

// ask sends a command to the broker: "advance 3600" moves its time, "reset" empties it.
func ask(command string) {
	fmt.Fprintln(broker.commands, command)
	broker.answers.ReadBytes('\n')
}

func TestAnOrderIsAnnounced(t *testing.T) {
	ask("reset")
	send(t, "order 7", 0)
	if body := firstMessage(t); body != "order 7" {
		t.Fatalf("got %q", body)
	}
}

func TestTheReminderComesTwoHoursLater(t *testing.T) {
	ask("reset")
	send(t, "pay order 8", 18)
	ask("advance 7202")
	if body := firstMessage(t); body != "pay order 8" {
		t.Fatalf("got %q", body)
	}
}

func send(t *testing.T, body string, delayLevel int) {
	t.Helper()
	client, err := rocketmq.NewProducer(producer.WithNameServer([]string{broker.Namesrv}), producer.WithInstanceName(t.Name()))
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown()
	message := primitive.NewMessage("orders", []byte(body)).WithDelayTimeLevel(delayLevel)
	if _, err := client.SendSync(context.Background(), message); err != nil {
		t.Fatal(err)
	}
}

func firstMessage(t *testing.T) string {
	t.Helper()
	bodies := make(chan string, 16)
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{broker.Namesrv}), consumer.WithGroupName("tests"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithInstance(t.Name()),
	)
	if err != nil {
		t.Fatal(err)
	}
	client.Subscribe("orders", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			bodies <- string(message.Body)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown()
	select {
	case body := <-bodies:
		return body
	case <-time.After(60 * time.Second):
		t.Fatal("no message came")
		return ""
	}
}

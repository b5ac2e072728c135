package main

import (
	"flag"
	"os"
	"os/signal"
	"syscall"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// options are the flags that every subcommand has.
type options struct {
	*flag.FlagSet
	namesrv, topic, group string
	start                 int
}

func newOptions(subcommand string) *options {
	o := &options{FlagSet: flag.NewFlagSet(subcommand, flag.ExitOnError)}
	o.StringVar(&o.namesrv, "namesrv", "", "name server, host:port")
	o.StringVar(&o.topic, "topic", "", "topic")
	o.StringVar(&o.group, "group", "", "producer or consumer group")
	o.IntVar(&o.start, "start", 0, "first index")
	return o
}

func (o *options) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{o.namesrv})
}

// stopSignal delivers SIGTERM and SIGINT, so that clients are closed and offsets stored before the end.
func stopSignal() <-chan os.Signal {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	return stop
}

// The driver's command line: <subcommand> --name value … A new subcommand is one more line in the table.
package main

import (
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var commands = map[string]func(arguments []string) error{
	"produce":       produce,
	"consume":       consume,
	"transaction":   transaction,
	"request-reply": requestReply,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "expected a subcommand, one of produce, consume, transaction, request-reply")
		os.Exit(2)
	}
	// The client logs to standard error; at its default level it tells of every pull.
	rlog.SetLogLevel("warn")
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

package cli

import "github.com/spf13/cobra"

func relayCommand(s *session) *cobra.Command {
	run := roleCommand(s, "Publish committed outbox rows until stopped; any number of replicas share the work",
		need{database: true, amqp: true}, "relay")
	return noun("relay", "Publish the outbox to RabbitMQ", run)
}

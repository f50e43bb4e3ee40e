package cli

import (
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// Forms of topology export.
const (
	exportDefinitions = "definitions"
	exportOperator    = "operator"
)

func topologyExport(s *session) *cobra.Command {
	var o topology.ExportOptions
	var as string
	cmd := &cobra.Command{
		Use: "export", Short: "Write the queues and exchanges of surefoot.yaml down as JSON, for others to make", Args: cobra.NoArgs,
		Long: "Write the queues and exchanges of surefoot.yaml down as JSON, for others to make. No service is asked.\n\n" +
			"definitions  for `rabbitmqctl import_definitions FILE` or POST /api/definitions, into a vhost that is there; what exists is left\n" +
			"             alone. With --users also a user for each role, with its rights and without a password: an import takes theirs away\n" +
			"operator     for RabbitMQ's messaging topology operator: `kubectl apply -f FILE`. Whoever deletes a Queue resource there deletes the\n" +
			"             queue with its messages",
		RunE: func(*cobra.Command, []string) error {
			if as != exportDefinitions && as != exportOperator {
				return usageErrorf("see surefoot topology export --help", "--format cannot be %q: use %s or %s", as, exportDefinitions, exportOperator)
			}
			if as == exportOperator && o.Users {
				return usageErrorf("leave out --users", "--users goes with --format %s only", exportDefinitions)
			}
			return s.export(as, o)
		},
	}
	cmd.Flags().StringVar(&as, "format", exportDefinitions, "definitions or operator")
	cmd.Flags().BoolVar(&o.Users, "users", false, "with a user for each role, and its rights")
	cmd.Flags().StringVar(&o.Vhost, "vhost", "", "`name` of the vhost (default that of amqp.url, else /)")
	cmd.Flags().StringVar(&o.Cluster, "cluster", "rabbitmq", "`name` of the RabbitmqCluster that the operator's resources refer to")
	return cmd
}

func (s *session) export(as string, o topology.ExportOptions) error {
	c, err := s.config(need{})
	if err != nil {
		return err
	}
	if len(c.Topology.Queues) == 0 {
		return usageErrorf("add one under topology.queues in surefoot.yaml", "there are no queues")
	}
	if o.Vhost == "" && c.AMQP.URL != "" {
		if o.Vhost, err = rabbit.Vhost(c.AMQP.URL.Reveal()); err != nil {
			return err
		}
	}
	o.Exchanges = c.Exchanges()
	if as == exportOperator {
		return writeJSON(s.env.Stdout, topology.ExportResources(c.Topology, o), "  ")
	}
	return writeJSON(s.env.Stdout, topology.Export(c.Topology, o), "  ")
}

package shop_test

import (
	"os"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/topology"
	"github.com/surefoot-mq/surefoot/watchdog"
)

// The program and the command line must mean the same shop.
func TestConfigurationSaysWhatTheProgramSays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../surefoot.yaml")
	require.NoError(t, err)
	var file struct {
		Topology  topology.Spec    `yaml:"topology"`
		Watchdog  config.Watchdog  `yaml:"watchdog"`
		Reconcile config.Reconcile `yaml:"reconcile"` // TestReservationsOfCancelledAndUnknownOrdersAreReleased
	}
	require.NoError(t, yaml.UnmarshalWithOptions(text, &file, yaml.Strict()))
	require.Equal(t, shop.Topology().WithDefaults(), file.Topology.WithDefaults())
	rules := app.WatchdogOptions(&config.Config{Watchdog: file.Watchdog}).Rules
	require.Equal(t, []watchdog.Rule{shop.PaymentTimeout("", 0), shop.ReservationExpired("")}, rules)
}

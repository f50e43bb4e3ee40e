package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/fault"
)

func TestArmedPointActsOnceAtItsPass(t *testing.T) {
	point, other := fault.Points()[0], fault.Points()[1]
	require.NoError(t, fault.Point(point), "nothing is armed")
	require.NoError(t, fault.Arm(point+":error@2"))
	require.NoError(t, fault.Point(other))
	require.NoError(t, fault.Point(point), "first pass")
	require.ErrorIs(t, fault.Point(point), fault.ErrInjected)
	require.NoError(t, fault.Point(point), "it acts once")
}

func TestArmRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, spec := range []string{"nowhere.at-all:kill", fault.Points()[0], fault.Points()[0] + ":explode", fault.Points()[0] + ":kill@0", fault.Points()[0] + ":kill@x"} {
		require.Error(t, fault.Arm(spec), spec)
	}
	require.NoError(t, fault.Arm(""))
}

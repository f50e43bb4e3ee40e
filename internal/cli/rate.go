package cli

import (
	"strconv"
	"strings"
)

// perSecond reads a rate such as 50/s, 0.5/s or 50; empty is 0, which is no limit.
func perSecond(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || !(rate >= 0.001 && rate <= 1e6) {
		return 0, usageErrorf("", "--rate must be 0.001/s to 1000000/s, such as 50/s")
	}
	return rate, nil
}

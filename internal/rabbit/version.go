package rabbit

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is the broker's version. The zero value is an unknown version, treated as the oldest supported one.
type Version struct {
	Major, Minor, Patch int
}

// ParseVersion reads "3.10.8", "4.0.5" or "4.3.0-rc.1"; what it cannot read is the zero Version.
func ParseVersion(text string) Version {
	text, _, _ = strings.Cut(text, "-")
	text, _, _ = strings.Cut(text, "+")
	var v Version
	for i, part := range strings.SplitN(text, ".", 4) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return Version{}
		}
		switch i {
		case 0:
			v.Major = n
		case 1:
			v.Minor = n
		case 2:
			v.Patch = n
		}
	}
	return v
}

// String is "3.10.8", or "unknown".
func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}

// AtLeast compares with major.minor.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// The predicates below know versions apart; everything else behaves alike on all of them.

// Supported says whether the broker is 3.10 or newer: older ones have no at-least-once dead-lettering.
func (v Version) Supported() bool { return v.AtLeast(3, 10) }

// MaxMessageBytes is the default limit of a message body: 128 MiB to 3.13, 16 MiB from 4.0. A larger one closes the channel, and all
// that is in flight on it has an unknown outcome. Operators may configure another limit (max_message_size).
func (v Version) MaxMessageBytes() int {
	if v.AtLeast(4, 0) {
		return 16 << 20
	}
	return 128 << 20
}

// DefaultsDeliveryLimit says whether a quorum queue without x-delivery-limit has one: 20 from 4.0, none before.
func (v Version) DefaultsDeliveryLimit() bool { return v.AtLeast(4, 0) }

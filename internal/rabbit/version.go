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

// The predicates below are the only places that know versions apart.

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

// RequeuesToFront says whether a returned message keeps its place in a quorum queue without a delivery limit: it goes to the back up to 3.13.
func (v Version) RequeuesToFront() bool { return v.AtLeast(4, 0) }

// NackCountsAsFailure says whether basic.nack with requeue counts against the delivery limit. From 4.3 only basic.reject and a crash do.
func (v Version) NackCountsAsFailure() bool { return !v.AtLeast(4, 3) }

// ConsumerTimeoutCancels says how the consumer timeout shows: from 4.3 a basic.cancel, before it a 406 that closes the channel.
func (v Version) ConsumerTimeoutCancels() bool { return v.AtLeast(4, 3) }

// HonoursClientDeathHeaders says whether an x-death published by a client takes part in the broker's cycle rule, which then drops the message.
// It does up to 3.12 and from 3.13.3 in the 3.13 line, and is ignored from 4.0.
func (v Version) HonoursClientDeathHeaders() bool {
	return !v.AtLeast(4, 0) && (!v.AtLeast(3, 13) || v.Patch >= 3)
}

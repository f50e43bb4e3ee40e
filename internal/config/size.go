package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 16MiB, 512KiB, 1GiB or 4096.
type Size int64

var errSize = errors.New("is not a size: write bytes as 16MiB, 512KiB, 1GiB or a number")

// sizeUnits are binary: a decimal MB beside MiB invites mistakes.
func sizeUnits() []struct {
	suffix string
	bytes  int64
} {
	return []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}, {"", 1}}
}

// UnmarshalText reads what String writes.
func (s *Size) UnmarshalText(text []byte) error {
	for _, unit := range sizeUnits() {
		digits, ok := strings.CutSuffix(string(text), unit.suffix)
		if !ok {
			continue
		}
		count, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || count < 0 || count > math.MaxInt64/unit.bytes {
			return errSize
		}
		*s = Size(count * unit.bytes)
		return nil
	}
	return errSize
}

// String writes the size in the largest unit that divides it.
func (s Size) String() string {
	for _, unit := range []struct {
		suffix string
		bytes  Size
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && s%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", s/unit.bytes, unit.suffix)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

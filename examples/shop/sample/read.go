package sample

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/surefoot-mq/surefoot/examples/shop/orders"
)

// maxLine bounds a line of a file of orders, in bytes.
const maxLine = 1 << 20

// Read reads JSON lines of orders and hands them on one by one; an error names its line. Orders are validated
// where they are submitted.
func Read(r io.Reader, each func(line int, o orders.Order) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	line := 0
	for scanner.Scan() {
		line++
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		o, err := decode(scanner.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if err := each(line, o); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("line %d: %w (a line may have up to %d bytes)", line+1, err, maxLine)
	}
	return nil
}

func decode(text []byte) (orders.Order, error) {
	var o orders.Order
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return o, fmt.Errorf("not an order: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return o, errors.New("more text after the order")
	}
	return o, nil
}

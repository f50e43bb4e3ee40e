package deadletter

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
)

// Record is a whole dead letter as JSON: every property, every header with its type, every byte of the body. An export
// has one per line; the archive keeps them without the body.
type Record struct {
	// Queue is the work queue whose dead letter it is.
	Queue exact `json:"queue"`
	// Exchange and RoutingKey are those with which the broker delivered it.
	Exchange   exact      `json:"exchange"`
	RoutingKey exact      `json:"routing_key"`
	Properties properties `json:"properties"`
	Headers    []field    `json:"headers"`
	// Body is that of a JSON message, as it is; BodyBase64 any other.
	Body       *string `json:"body,omitempty"`
	BodyBase64 *string `json:"body_base64,omitempty"`
}

type properties struct {
	MessageID       exact  `json:"message_id,omitempty"`
	Type            exact  `json:"type,omitempty"`
	ContentType     exact  `json:"content_type,omitempty"`
	ContentEncoding exact  `json:"content_encoding,omitempty"`
	CorrelationID   exact  `json:"correlation_id,omitempty"`
	ReplyTo         exact  `json:"reply_to,omitempty"`
	AppID           exact  `json:"app_id,omitempty"`
	UserID          exact  `json:"user_id,omitempty"`
	Expiration      exact  `json:"expiration,omitempty"`
	DeliveryMode    uint8  `json:"delivery_mode,omitempty"`
	Priority        uint8  `json:"priority,omitempty"`
	Timestamp       *int64 `json:"timestamp,omitempty"` // Unix seconds
}

// exact is a text that may be any bytes: as JSON a string, or {"base64": ...} when it is not UTF-8.
type exact string

type exactBytes struct {
	Base64 *string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (e exact) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(e)) {
		return json.Marshal(string(e))
	}
	text := base64.StdEncoding.EncodeToString([]byte(e))
	return json.Marshal(exactBytes{&text})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *exact) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(e))
	}
	var other exactBytes
	if err := json.Unmarshal(data, &other); err != nil {
		return err
	}
	if other.Base64 == nil {
		return errors.New(`neither a string nor {"base64": ...}`)
	}
	raw, err := base64.StdEncoding.DecodeString(*other.Base64)
	*e = exact(raw)
	return err
}

// field is a header, an entry of a list (without a name) or of a table.
type field struct {
	Name  exact           `json:"name,omitempty"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

// maxRecordDepth bounds nesting; the client library reads no deeper headers.
const maxRecordDepth = 32

// recordOfLetter makes the record of a delivery. The body is left out without withBody.
func recordOfLetter(d *amqp.Delivery, queue string, withBody bool) (Record, error) {
	r := Record{
		Queue: exact(queue), Exchange: exact(d.Exchange), RoutingKey: exact(d.RoutingKey),
		Properties: properties{
			MessageID: exact(d.MessageId), Type: exact(d.Type), ContentType: exact(d.ContentType), ContentEncoding: exact(d.ContentEncoding),
			CorrelationID: exact(d.CorrelationId), ReplyTo: exact(d.ReplyTo), AppID: exact(d.AppId), UserID: exact(d.UserId),
			Expiration: exact(d.Expiration), DeliveryMode: d.DeliveryMode, Priority: d.Priority,
		},
	}
	if !d.Timestamp.IsZero() {
		seconds := d.Timestamp.Unix()
		r.Properties.Timestamp = &seconds
	}
	var err error
	if r.Headers, err = fieldsOf(d.Headers, 1); err != nil {
		return r, fmt.Errorf("record headers: %w", err)
	}
	if withBody {
		r.setBody(d.Body)
	}
	return r, nil
}

func (r *Record) setBody(body []byte) {
	if json.Valid(body) && utf8.Valid(body) {
		text := string(body)
		r.Body = &text
		return
	}
	text := base64.StdEncoding.EncodeToString(body)
	r.BodyBase64 = &text
}

// delivery is the letter that the record is of.
func (r *Record) delivery() (*amqp.Delivery, error) {
	p := r.Properties
	d := &amqp.Delivery{
		Exchange: string(r.Exchange), RoutingKey: string(r.RoutingKey), MessageId: string(p.MessageID), Type: string(p.Type),
		ContentType: string(p.ContentType), ContentEncoding: string(p.ContentEncoding), CorrelationId: string(p.CorrelationID),
		ReplyTo: string(p.ReplyTo), AppId: string(p.AppID), UserId: string(p.UserID), Expiration: string(p.Expiration),
		DeliveryMode: p.DeliveryMode, Priority: p.Priority,
	}
	if p.Timestamp != nil {
		d.Timestamp = time.Unix(*p.Timestamp, 0)
	}
	var err error
	if d.Headers, err = tableOf(r.Headers, 1); err != nil {
		return nil, err
	}
	switch {
	case r.Body != nil && r.BodyBase64 != nil:
		return nil, errors.New("both body and body_base64 are given")
	case r.Body != nil:
		d.Body = []byte(*r.Body)
	case r.BodyBase64 != nil:
		if d.Body, err = base64.StdEncoding.DecodeString(*r.BodyBase64); err != nil {
			return nil, fmt.Errorf("body_base64: %w", err)
		}
	}
	return d, nil
}

func fieldsOf(t amqp.Table, depth int) ([]field, error) {
	fields := make([]field, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		f, err := fieldOfValue(t[name], depth)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", message.Clip(name, 64), err)
		}
		f.Name = exact(name)
		fields = append(fields, f)
	}
	return fields, nil
}

func fieldOfValue(value any, depth int) (f field, err error) {
	if depth > maxRecordDepth {
		return f, fmt.Errorf("nested more than %d deep", maxRecordDepth)
	}
	var shown any
	switch v := value.(type) {
	case nil:
		return field{Type: "void"}, nil
	case bool:
		f.Type, shown = "bool", v
	case int8:
		f.Type, shown = "int8", v
	case uint8:
		f.Type, shown = "uint8", v
	case int16:
		f.Type, shown = "int16", v
	case uint16:
		f.Type, shown = "uint16", v
	case int32:
		f.Type, shown = "int32", v
	case uint32:
		f.Type, shown = "uint32", v
	case int64:
		f.Type, shown = "int64", v
	case float32: // as text: JSON has no infinity
		f.Type, shown = "float32", strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		f.Type, shown = "float64", strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		f.Type, shown = "decimal", [2]int64{int64(v.Scale), int64(v.Value)}
	case string:
		f.Type, shown = "string", exact(v)
	case []byte:
		f.Type, shown = "bytes", base64.StdEncoding.EncodeToString(v)
	case time.Time:
		f.Type, shown = "timestamp", v.Unix()
	case amqp.Table:
		f.Type = "table"
		if shown, err = fieldsOf(v, depth+1); err != nil {
			return f, err
		}
	case []any:
		f.Type = "list"
		if shown, err = listOf(v, depth+1); err != nil {
			return f, err
		}
	default:
		return f, fmt.Errorf("a value of type %T", value)
	}
	f.Value, err = json.Marshal(shown)
	return f, err
}

func listOf(values []any, depth int) ([]field, error) {
	fields := make([]field, len(values))
	for i, value := range values {
		var err error
		if fields[i], err = fieldOfValue(value, depth); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

func tableOf(fields []field, depth int) (amqp.Table, error) {
	t := make(amqp.Table, len(fields))
	for _, f := range fields {
		value, err := f.value(depth)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", message.Clip(string(f.Name), 64), err)
		}
		t[string(f.Name)] = value
	}
	return t, nil
}

func (f *field) value(depth int) (any, error) {
	if depth > maxRecordDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxRecordDepth)
	}
	switch f.Type {
	case "void":
		return nil, nil
	case "bool":
		return parsed[bool](f.Value)
	case "int8":
		return parsed[int8](f.Value)
	case "uint8":
		return parsed[uint8](f.Value)
	case "int16":
		return parsed[int16](f.Value)
	case "uint16":
		return parsed[uint16](f.Value)
	case "int32":
		return parsed[int32](f.Value)
	case "uint32":
		return parsed[uint32](f.Value)
	case "int64":
		return parsed[int64](f.Value)
	case "string":
		text, err := parsed[exact](f.Value)
		return string(text), err
	case "bytes":
		return parsed[[]byte](f.Value)
	case "timestamp":
		seconds, err := parsed[int64](f.Value)
		return time.Unix(seconds, 0), err
	default:
		return f.rareValue(depth)
	}
}

func (f *field) rareValue(depth int) (any, error) {
	switch f.Type {
	case "float32", "float64":
		text, err := parsed[string](f.Value)
		if err != nil {
			return nil, err
		}
		if f.Type == "float32" {
			n, err := strconv.ParseFloat(text, 32)
			return float32(n), err
		}
		return strconv.ParseFloat(text, 64)
	case "decimal":
		pair, err := parsed[[2]int64](f.Value)
		if err == nil && (pair[0] < 0 || pair[0] > math.MaxUint8 || pair[1] < math.MinInt32 || pair[1] > math.MaxInt32) {
			err = errors.New("a decimal is [scale, value] of 8 and 32 bits")
		}
		return amqp.Decimal{Scale: uint8(pair[0]), Value: int32(pair[1])}, err //nolint:gosec // checked
	case "table":
		fields, err := parsed[[]field](f.Value)
		if err != nil {
			return nil, err
		}
		return tableOf(fields, depth+1)
	case "list":
		fields, err := parsed[[]field](f.Value)
		if err != nil {
			return nil, err
		}
		values := make([]any, len(fields))
		for i := range fields {
			if values[i], err = fields[i].value(depth + 1); err != nil {
				return nil, err
			}
		}
		return values, nil
	}
	return nil, fmt.Errorf("there is no type %q", message.Clip(f.Type, 32))
}

func parsed[T any](value json.RawMessage) (v T, err error) {
	if len(value) == 0 {
		return v, errors.New("it has no value")
	}
	err = json.Unmarshal(value, &v)
	return v, err
}

// returning is a letter as it is put back into a dead-letter queue: the same message without what the broker owns, which may not be
// published again. What the broker recorded of its death is kept under names of ours.
func returning(d *amqp.Delivery, n names) amqp.Publishing {
	f := factsOf(d, n)
	p := message.Republishing(d)
	if f.death == nil {
		return p
	}
	if f.death.Queue == n.work {
		message.SetOrigin(p.Headers, message.Origin{Exchange: f.death.Exchange, RoutingKey: f.death.RoutingKey, Queue: n.work})
	}
	if message.Text(p.Headers, message.HeaderErrorClass) == "" {
		p.Headers[message.HeaderErrorClass] = message.Clip(f.class, 64)
	}
	if at := f.diedAt; message.Text(p.Headers, message.HeaderLastFailedAt) == "" && !at.IsZero() && at.Year() < 10000 {
		p.Headers[message.HeaderLastFailedAt] = at.UTC().Format(time.RFC3339Nano)
	}
	return p
}

package message

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Publishing returns the message as AMQP carries it: persistent, with the user's headers and Surefoot's.
// It fails with an [*InvalidError] when the headers cannot be encoded or are over their limits; everything else that the protocol
// could refuse is found by [Message.Validate].
func (m Message) Publishing() (amqp.Publishing, error) {
	headers, err := m.table()
	if err != nil {
		return amqp.Publishing{}, err
	}
	if headers == nil {
		headers = make(amqp.Table, 4)
	}
	setText(headers, HeaderKey, m.Key)
	setText(headers, HeaderCausationID, m.CausationID)
	setText(headers, HeaderRequestID, m.RequestID)
	setText(headers, HeaderTraceParent, m.TraceParent)
	setText(headers, HeaderTraceState, m.TraceState)
	if !m.ExpiresAt.IsZero() {
		headers[HeaderExpiresAt] = m.ExpiresAt.UnixMilli()
	}
	contentType := m.ContentType
	if contentType == "" {
		contentType = DefaultContentType
	}
	return amqp.Publishing{
		Headers:       headers,
		ContentType:   contentType,
		DeliveryMode:  amqp.Persistent,
		CorrelationId: m.CorrelationID,
		MessageId:     m.ID,
		Timestamp:     m.OccurredAt,
		Type:          m.Type,
		AppId:         m.Source,
		Body:          m.Payload,
	}, nil
}

// FromDelivery reads a message from a delivery. It never fails: a message of a foreign producer may have
// no ID or no Type, which is for the caller to judge. Payload aliases the delivery's body.
func FromDelivery(d *amqp.Delivery) Message {
	m := Message{
		ID:            d.MessageId,
		Type:          d.Type,
		Key:           Text(d.Headers, HeaderKey),
		Exchange:      d.Exchange,
		RoutingKey:    d.RoutingKey,
		OccurredAt:    d.Timestamp,
		Source:        d.AppId,
		CorrelationID: d.CorrelationId,
		CausationID:   Text(d.Headers, HeaderCausationID),
		RequestID:     Text(d.Headers, HeaderRequestID),
		ContentType:   d.ContentType,
		Payload:       d.Body,
		Headers:       userHeaders(d.Headers),
		TraceParent:   Text(d.Headers, HeaderTraceParent),
		TraceState:    Text(d.Headers, HeaderTraceState),
		Attempts:      Attempts(d.Headers),
	}
	m.ExpiresAt, _ = expiry(d.Headers[HeaderExpiresAt])
	// After a retry the delivery carries the route of the retry path: the first one is in the headers.
	if origin := OriginOf(d.Headers); origin.Queue != "" {
		m.Exchange, m.RoutingKey = origin.Exchange, origin.RoutingKey
	}
	return m
}

func userHeaders(t amqp.Table) Headers {
	var user Headers
	for name, value := range t {
		if Reserved(name) {
			continue
		}
		if user == nil {
			user = make(Headers, len(t))
		}
		user[name] = value
	}
	return user
}

// Origin is where a message was first consumed: the route it was published with, and the queue.
type Origin struct {
	Exchange, RoutingKey, Queue string
}

// OriginOf reads the origin from headers; the zero value means that none was recorded yet.
func OriginOf(h amqp.Table) Origin {
	return Origin{
		Exchange:   Text(h, HeaderOriginExchange),
		RoutingKey: Text(h, HeaderOriginRoutingKey),
		Queue:      Text(h, HeaderOriginQueue),
	}
}

// SetOrigin records the origin, unless the headers name one already: the first one stays. Texts that are
// too long for a route are cut.
func SetOrigin(h amqp.Table, o Origin) {
	if Text(h, HeaderOriginQueue) != "" {
		return
	}
	h[HeaderOriginExchange] = Clip(o.Exchange, MaxShortString)
	h[HeaderOriginRoutingKey] = Clip(o.RoutingKey, MaxShortString)
	h[HeaderOriginQueue] = Clip(o.Queue, MaxShortString)
}

// Republishing returns a delivery as it may be published again: same body, same properties, the user's
// and Surefoot's headers, persistent; without the headers the broker owns, without expiration (a message
// would expire on its way) and without user_id (the broker closes the channel when it is not the
// connection's user). The headers are a copy, never nil.
func Republishing(d *amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers:         Clean(d.Headers),
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}

// Clean returns a copy of the headers without those that the broker owns. It never returns nil.
func Clean(h amqp.Table) amqp.Table {
	clean := make(amqp.Table, len(h)+16)
	maps.Copy(clean, h)
	maps.DeleteFunc(clean, func(name string, _ any) bool { return BrokerOwned(name) })
	return clean
}

// ClearFailure removes what a redrive must reset: attempts, the deferral and the trace of the last
// failure's stack. Class, type, message and the attempt log stay, so that the history is not lost.
func ClearFailure(h amqp.Table) {
	for _, name := range []string{HeaderAttempts, HeaderNotBefore, HeaderErrorStack} {
		delete(h, name)
	}
}

func setText(h amqp.Table, name, value string) {
	if value != "" {
		h[name] = value
	}
}

// Time reads an RFC 3339 time header; the zero time means absent or unreadable.
func Time(h amqp.Table, name string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, Text(h, name))
	if err != nil {
		return time.Time{}
	}
	return t
}

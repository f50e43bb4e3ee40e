package relay

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
)

// rowColumns are the columns of a message, as scanner reads them. "at" is the row's ctid.
const rowColumns = `x.shard, x.id, x.hash, x.at, x.created_at, x.occurred_at, x.message_id, x.type, x.key, x.exchange, x.routing_key,
    x.content_type, x.source, x.correlation_id, x.causation_id, x.request_id, x.traceparent, x.tracestate, x.headers, x.payload`

// rowOverhead is what a row costs in memory besides its payload and headers, in bytes, roughly.
const rowOverhead = 1 << 10

// rowSize is size in SQL.
const rowSize = `(octet_length(x.payload) + coalesce(octet_length(x.headers::text), 0) + 1024)`

// before is the frame of what comes before a row, in a window.
const before = `ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING`

// place says where a row is in its life, see the package comment.
type place uint8

const (
	placeWaiting place = iota
	placeReady
	placeChecking // a while after it was read: whether it is still in the outbox is looked up
	placeFlying
	placeSettling
	placeParking
)

// instant is a time of this process's monotonic clock, in a third of a time.Time's memory.
type instant time.Duration

// processStart is from when on instants count.
var processStart = time.Now()

func instantOf(t time.Time) instant { return instant(t.Sub(processStart)) }

func (i instant) time() time.Time { return processStart.Add(time.Duration(i)) }

// ago is how long before now it was.
func (i instant) ago(now time.Time) time.Duration { return now.Sub(i.time()) }

// row is one outbox row in memory. Only its shard's goroutine touches it after it was read. There are tens of thousands.
type row struct {
	id, hash int64
	created  int64 // microseconds since 1970, by the database
	msg      content
	headers  []byte
	readAt   instant // it was in the outbox then, or later
	sentAt   instant
	take     uint64 // lanes.takes when it was taken
	seq      uint64 // of its last publish
	passes   uint64 // see returned
	route    *route
	unit     *unit      // nil: no key, so no order
	parked   *parkedRef // nil: it does not live in outbox_parked

	// Where it was read, most probably still its place: slot from 1 on, or 0 when that is not known.
	block uint32
	slot  uint16

	shard    int16
	place    place
	late     bool // visible only now though its id is below the cursor
	overdue  bool // flying, but its confirm did not come in time
	probe    bool // published to find out whether its stopped route works again
	isolated bool // was in flight when the broker closed the channel: published alone
	returned bool // was returned before; passes and seq are of its route then
	checked  bool // looked up: those of its key that are being looked up now come after it
}

// content is a message in a fifth of the memory. Its texts are parts of one.
type content struct {
	payload  []byte
	occurred int64 // microseconds since 1970
	texts    string
	ends     [allTexts]uint16
}

// The texts in the order of rowColumns.
const (
	textID = iota
	textType
	textKey
	textExchange
	textRoutingKey
	textContentType
	textSource
	textCorrelationID
	textCausationID
	textRequestID
	textTraceParent
	textTraceState
	allTexts
)

// text returns one of those.
func (c *content) text(which int) string {
	begin := uint16(0)
	if which > 0 {
		begin = c.ends[which-1]
	}
	return c.texts[begin:c.ends[which]]
}

// keep takes the texts that are parts of whole, by their lengths. The table bounds each of them.
func (c *content) keep(whole string, lengths *[allTexts]int) {
	c.texts = whole
	end := 0
	for i, n := range lengths {
		end += n
		c.ends[i] = uint16(end)
	}
}

// route is the routing key, see [message.Message.Route].
func (c *content) route() string { return cmp.Or(c.text(textRoutingKey), c.text(textType)) }

// message returns it whole.
func (c *content) message() message.Message {
	return message.Message{
		ID: c.text(textID), Type: c.text(textType), Key: c.text(textKey), Exchange: c.text(textExchange), RoutingKey: c.text(textRoutingKey),
		Payload: c.payload, OccurredAt: time.UnixMicro(c.occurred),
		ContentType: c.text(textContentType), Source: c.text(textSource), CorrelationID: c.text(textCorrelationID), CausationID: c.text(textCausationID),
		RequestID: c.text(textRequestID), TraceParent: c.text(textTraceParent), TraceState: c.text(textTraceState),
	}
}

// at is its ctid as it was read; NULL when that is not known.
func (r *row) at() pgtype.TID {
	return pgtype.TID{BlockNumber: r.block, OffsetNumber: r.slot, Valid: r.slot > 0}
}

// size is what the row counts against limits in bytes.
func (r *row) size() int { return len(r.msg.payload) + len(r.headers) + rowOverhead }

// empty lets go of what only a publish needs, once the row counts against no limit any more.
func (r *row) empty() { r.msg.payload, r.headers = nil, nil }

// publishing encodes the row. Shard, id and epoch travel along, so that a late publish of a former owner can
// be told from the new owner's.
func (r *row) publishing(epoch int64) (amqp.Publishing, error) {
	m := r.msg.message() // decoded headers are not kept: they take many times their text
	if r.headers != nil {
		headers, err := message.ParseHeadersJSON(r.headers)
		if err != nil {
			return amqp.Publishing{}, fmt.Errorf("decode headers: %w", err)
		}
		m.Headers = headers
	}
	p, err := m.Publishing()
	if err != nil {
		return amqp.Publishing{}, err
	}
	p.Headers[message.HeaderOutbox] = strconv.Itoa(int(r.shard)) + "/" + strconv.FormatInt(r.id, 10)
	p.Headers[message.HeaderEpoch] = epoch
	return p, nil
}

package relay

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The columns of a message in a result, from the first of rowColumns.
const (
	colShard = iota
	colID
	colHash
	colAt
	colCreated
	colOccurred
	colFirstText // message_id, and the other texts up to the headers
	colHeaders   = colFirstText + 12
	colPayload   = colHeaders + 1
)

// scanner makes rows of a result. pgx would make each text by itself, and look for the way to do so at every column: here the texts of a row are one,
// of which each is a part. For one result.
type scanner struct {
	from   int // columns before the message's: none, or one, the kind
	binary bool
	known  bool
	texts  []byte
}

// scan makes the row that rows stands on, and returns its kind, if that is told.
func (s *scanner) scan(rows pgx.Rows, readAt time.Time) (kind int16, r *row, err error) {
	if !s.known {
		s.known, s.binary = true, true
		for _, f := range rows.FieldDescriptions()[:s.from+colFirstText] {
			s.binary = s.binary && f.Format == pgtype.BinaryFormatCode
		}
	}
	r = &row{readAt: instantOf(readAt)}
	if !s.binary {
		return s.scanText(rows, r)
	}
	raw := rows.RawValues()
	if s.from > 0 {
		kind = int16(binary.BigEndian.Uint16(raw[0]))
	}
	values := raw[s.from:]
	if len(values[colShard]) != 2 || len(values[colID]) != 8 || len(values[colHash]) != 8 || len(values[colAt]) != 6 || len(values[colCreated]) != 8 || len(values[colOccurred]) != 8 {
		return 0, nil, fmt.Errorf("a row of the outbox has columns of %d, %d, %d, %d, %d and %d bytes where 2, 8, 8, 6, 8 and 8 are expected",
			len(values[colShard]), len(values[colID]), len(values[colHash]), len(values[colAt]), len(values[colCreated]), len(values[colOccurred]))
	}
	r.shard, r.id, r.hash = int16(binary.BigEndian.Uint16(values[colShard])), integer(values[colID]), integer(values[colHash])
	r.block, r.slot = binary.BigEndian.Uint32(values[colAt]), binary.BigEndian.Uint16(values[colAt][4:])
	r.created, r.msg.occurred = micros(values[colCreated]), micros(values[colOccurred])
	s.keep(&r.msg, values[colFirstText:colHeaders])
	r.headers, r.msg.payload = copied(values[colHeaders]), copied(values[colPayload])
	return kind, r, nil
}

// scanText is for the simple protocol, which sends everything as text.
func (s *scanner) scanText(rows pgx.Rows, r *row) (kind int16, _ *row, err error) {
	var at pgtype.TID
	var created, occurred time.Time
	var texts [colHeaders - colFirstText][]byte
	to := append([]any{&kind}[:s.from], &r.shard, &r.id, &r.hash, &at, &created, &occurred)
	for i := range texts {
		to = append(to, &texts[i])
	}
	if err := rows.Scan(append(to, &r.headers, &r.msg.payload)...); err != nil {
		return 0, nil, err
	}
	r.block, r.slot = at.BlockNumber, at.OffsetNumber
	r.created, r.msg.occurred = created.UnixMicro(), occurred.UnixMicro()
	s.keep(&r.msg, texts[:])
	return kind, r, nil
}

// keep makes the texts of a row one.
func (s *scanner) keep(c *content, values [][]byte) {
	s.texts = s.texts[:0]
	var lengths [allTexts]int
	for i, v := range values {
		s.texts = append(s.texts, v...)
		lengths[i] = len(v)
	}
	c.keep(string(s.texts), &lengths)
}

func integer(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

// micros reads a timestamptz, which counts from 2000, as microseconds since 1970.
func micros(b []byte) int64 {
	const y2k = 946_684_800_000_000
	return y2k + integer(b)
}

// copied keeps what is valid only until the next row; NULL is nil.
func copied(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

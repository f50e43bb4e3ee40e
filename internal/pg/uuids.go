package pg

import (
	"crypto/sha256"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// UUIDs are ids as pgx sends them best: of a [uuid.UUID] it makes a text, which it then reads (measured: 7 us each instead of 0.1).
func UUIDs(ids []uuid.UUID) []pgtype.UUID {
	out := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		out[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return out
}

// NullUUIDs are UUIDs of which some are NULL.
func NullUUIDs(ids []uuid.NullUUID) []pgtype.UUID {
	out := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		out[i] = pgtype.UUID{Bytes: id.UUID, Valid: id.Valid}
	}
	return out
}

// InboxKey is the SQL function inbox_key of a message id: a canonical UUID as it is, of anything else the head of its SHA-256.
func InboxKey(id string) uuid.UUID {
	if parsed, err := uuid.Parse(id); err == nil && parsed.String() == id {
		return parsed
	}
	sum := sha256.Sum256([]byte(id))
	return uuid.UUID(sum[:16])
}

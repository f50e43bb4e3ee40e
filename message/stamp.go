package message

import "time"

// Stamp is a time for output that came from a message or a row. JSON's times have years from 0 to 9999, while anything can
// be claimed there: such a time is null, so that it does not keep the rest from being shown.
type Stamp struct{ time.Time }

// MarshalJSON never fails.
func (s Stamp) MarshalJSON() ([]byte, error) {
	if year := s.UTC().Year(); year < 0 || year > 9999 {
		return []byte("null"), nil
	}
	return s.UTC().MarshalJSON()
}

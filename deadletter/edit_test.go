package deadletter_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
)

func TestAnEditedMessageReplacesTheLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.inbox("done")
	m := letter("bad", "order.paid", "permanent", "no such currency")
	m.Body = []byte(`{"orderId": 12345678901234567890, "currency":"EURO", "items":[{"sku":"A"},{"sku":"B"}]}`)
	s.fill(dlq, letter("a", "order.paid", "x", "x"), m, letter("done", "order.paid", "x", "x"))
	s.scan()
	r := deadletter.EditRequest{
		Queue: work, ID: "bad", Who: "ann@test", Reason: "ticket 4711", DryRun: true,
		Body:       []byte(`{"orderId": 12345678901234567890, "currency":"EUR", "items":[{"sku":"A"}]}`),
		SetHeaders: map[string]string{"corrected": "yes"}, RemoveHeaders: []string{"tenant"},
	}
	plan, err := s.letters.Edit(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 3, s.count(dlq))
	text := func(s string) *string { return &s }
	require.Equal(t, []deadletter.Change{
		{Field: "header corrected", New: text(`"yes"`)},
		{Field: "header tenant", Old: text(`"acme"`)},
		{Field: "body.currency", Old: text(`"EURO"`), New: text(`"EUR"`)},
		{Field: "body.items.1", Old: text(`{"sku":"B"}`)},
	}, plan.Diff)
	r.DryRun = false
	edit, err := s.letters.Edit(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, plan.NewID, edit.NewID, "the same change of the same message is the same message")
	got := s.take(work)
	require.Len(t, got, 1)
	require.Equal(t, []string{edit.NewID, "order.paid", string(r.Body)}, []string{got[0].MessageId, got[0].Type, string(got[0].Body)})
	require.Equal(t, []any{"bad", "yes", nil, "key-bad"},
		[]any{got[0].Headers[deadletter.HeaderEditedFrom], got[0].Headers["corrected"], got[0].Headers["tenant"], got[0].Headers[message.HeaderKey]})
	require.Zero(t, message.Attempts(got[0].Headers))
	require.Equal(t, "edited", s.indexRows()[1].Gone)
	require.Equal(t, []string{edit.NewID}, s.recorded("redriven"))
	require.Equal(t, []string{"bad"}, s.recorded("replaced by "+edit.NewID))

	_, err = s.letters.Edit(t.Context(), r)
	require.ErrorIs(t, err, deadletter.ErrNoLetter)
	r.ID = "done"
	_, err = s.letters.Edit(t.Context(), r)
	require.ErrorIs(t, err, deadletter.ErrProcessed)
	r.ID, r.Body, r.SetHeaders, r.RemoveHeaders = "a", nil, nil, []string{"none"}
	_, err = s.letters.Edit(t.Context(), r)
	require.ErrorIs(t, err, deadletter.ErrBadRequest, "nothing differs")
	for _, name := range []string{"", "sf-key", "x-death", "CC"} {
		r.RemoveHeaders = []string{name}
		_, err = s.letters.Edit(t.Context(), r)
		require.ErrorIs(t, err, deadletter.ErrBadRequest, name)
	}
	r.RemoveHeaders, r.Reason = []string{"tenant"}, " "
	_, err = s.letters.Edit(t.Context(), r)
	require.ErrorIs(t, err, deadletter.ErrBadRequest)
	require.Equal(t, []string{"a", "done"}, s.ids(dlq))
	restored, err := s.letters.Restore(t.Context(), deadletter.RestoreRequest{Queue: work, Who: "bob", Operation: edit.Operation})
	require.NoError(t, err)
	require.Equal(t, 1, restored.Done, "the old one is in the archive")
}

// Without a record nothing leaves, and the same edit sends the same message again.
func TestAnEditThatCannotBeRecordedKeepsTheLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("a", "order.paid", "x", "x"))
	_, err := s.db.Pool.Exec(t.Context(), "ALTER TABLE "+s.db.Schema+".dlq_edits ADD CONSTRAINT no CHECK (queue = '')")
	require.NoError(t, err)
	r := deadletter.EditRequest{Queue: work, ID: "a", Who: "ann@test", Reason: "test", Body: []byte("{}")}
	first, err := s.letters.Edit(t.Context(), r)
	require.ErrorContains(t, err, "do the same edit again")
	require.Equal(t, 1, s.count(dlq))
	_, err = s.db.Pool.Exec(t.Context(), "ALTER TABLE "+s.db.Schema+".dlq_edits DROP CONSTRAINT no")
	require.NoError(t, err)
	second, err := s.letters.Edit(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, first.NewID, second.NewID)
	require.Zero(t, s.count(dlq))
	require.Equal(t, []string{first.NewID, first.NewID}, s.ids(work))
}

package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// doneLasts is how long after a change its page may say so.
const doneLasts = time.Minute

// doneKey signs what pages say after a change: nobody else can make one say it.
type doneKey [32]byte

func newDoneKey() (k doneKey) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}

func (k doneKey) sign(word, until, page, bond string) string {
	mac := hmac.New(sha256.New, k[:])
	for _, part := range []string{word, until, page, bond} {
		_, _ = mac.Write([]byte(strconv.Itoa(len(part)) + ":" + part)) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// next is where a change leads to, and what that page then says once.
type next struct{ page, done string }

// goOn leads to the page, which says what was done to this browser, for a minute, once.
func (c *Console) goOn(w http.ResponseWriter, r *http.Request, n next) {
	if n.done != "" {
		until := strconv.FormatInt(time.Now().Add(doneLasts).Unix(), 10)
		http.SetCookie(w, c.gate.Cookie("done", n.done+"."+until+"."+c.doneKey.sign(n.done, until, n.page, c.gate.Bond(r)), doneLasts))
	}
	http.Redirect(w, r, n.page, http.StatusSeeOther)
}

// done is what a page says of a change that led to it. A request by which an open page updates itself leaves it alone.
func (c *Console) done(w http.ResponseWriter, r *http.Request) string {
	empty := c.gate.Cookie("done", "", 0)
	cookie, err := r.Cookie(empty.Name)
	if err != nil || r.Method != http.MethodGet || r.Header.Get("Sec-Fetch-Dest") == "empty" {
		return ""
	}
	word, rest, _ := strings.Cut(cookie.Value, ".")
	until, mac, _ := strings.Cut(rest, ".")
	if !hmac.Equal([]byte(mac), []byte(c.doneKey.sign(word, until, r.URL.RequestURI(), c.gate.Bond(r)))) {
		return ""
	}
	http.SetCookie(w, empty)
	if seconds, err := strconv.ParseInt(until, 10, 64); err != nil || time.Now().Unix() > seconds {
		return ""
	}
	return doneText(word)
}

// doneText is what a change says after it was made; cookies carry only the word.
func doneText(word string) string {
	return map[string]string{
		"noted": "The note is kept.", "started": "The redrive has started.", "paused": "The redrive is paused.",
		"resumed": "The redrive goes on.", "cancelled": "The redrive is cancelled.", "dropped": "The plan is dropped.",
		"discarded": "The messages are discarded; for 30 days they can be restored.", "queue-paused": "The queue is paused.", "queue-resumed": "The queue goes on.",
		"asked": "A relay has done it.", "asking": "It is written down, and a relay will do it.", "sagas": "It is done, and in the audit.",
	}[word]
}

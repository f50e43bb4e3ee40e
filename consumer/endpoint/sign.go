package endpoint

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Sign returns the value of Surefoot-Signature, "t=SECONDS,v1=HEX": the HMAC-SHA-256, under key, of the seconds, the headers
// Surefoot-Message-Id, -Message-Type and -Key as they are sent ("" when missing), and the body, with a line feed behind each but the
// body. Headers cannot hold a line feed, so no two requests are signed alike. A receiver computes the same, compares in constant time,
// and refuses what is older than a few minutes.
func Sign(key string, at time.Time, header http.Header, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = fmt.Fprintf(mac, "%s\n%s\n%s\n%s\n", seconds, header.Get(HeaderMessageID), header.Get(HeaderMessageType), header.Get(HeaderKey))
	_, _ = mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

package pg

import (
	"strings"

	"github.com/surefoot-mq/surefoot/resilience"
)

// Advice is what to do about the error of a server that is there and lets nobody in: TLS, a database that it does not have, a user or a
// password that it does not know. Empty for every other error.
func Advice(err error) string {
	switch state := resilience.SQLStateOf(err); {
	case TLSAdvice(err) != "":
		return TLSAdvice(err)
	case state == UndefinedDatabase:
		return "create the database, or correct its name in SUREFOOT_DATABASE_URL"
	case strings.HasPrefix(state, "28"): // authorisation
		return "correct user and password in SUREFOOT_DATABASE_URL, or let the user in (pg_hba.conf)"
	}
	return ""
}

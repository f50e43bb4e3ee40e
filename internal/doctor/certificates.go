package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

const (
	// lateRenewal is how much of a certificate's time is left, as its part, when it should have been renewed: most are at a third.
	lateRenewal = 4
	// lateRenewalMost bounds that for those of a long time.
	lateRenewalMost = 30 * 24 * time.Hour
)

// certificates finds own certificates that are not valid at this time, or will not be for long. Those of the services are told when a
// connection fails.
func (v *visit) certificates(context.Context) ([]Finding, error) {
	var found []Finding
	type pair struct{ section, cert, key string }
	pairs := []pair{
		{"database", v.config.Database.CertFile, v.config.Database.KeyFile},
		{"amqp", v.config.AMQP.CertFile, v.config.AMQP.KeyFile},
		{"console", v.config.Console.CertFile, v.config.Console.KeyFile},
		{"http", v.config.HTTP.CertFile, v.config.HTTP.KeyFile},
	}
	for _, q := range v.config.Topology.Queues {
		if q.Target != nil && q.Target.HTTP != nil {
			pairs = append(pairs, pair{q.Name + ".target.http", q.Target.HTTP.CertFile, q.Target.HTTP.KeyFile})
		}
	}
	for _, own := range pairs {
		if own.cert == "" {
			continue
		}
		from, until, err := tlsfiles.Files{Cert: own.cert, Key: own.key}.Valid()
		f := judgeCertificate(from, until, v.o.Now())
		if err != nil {
			f = Finding{Severity: Critical, Found: err.Error(), Meaning: notShown, Mend: "put a certificate and its key there, in PEM form, where this user can read them"}
		}
		f.About = own.section + ".cert_file"
		found = append(found, f)
	}
	if len(found) == 0 {
		found = append(found, ok("certificates", "surefoot.yaml names none of its own"))
	}
	return found, nil
}

const notShown = "connections with it fail; a listener that runs goes on with the one it had while that is valid"

func judgeCertificate(from, until, now time.Time) Finding {
	const renewed = "have it renewed: it is read again without a restart"
	switch left := until.Sub(now); {
	case now.Before(from):
		return Finding{Severity: Critical, Found: "is not valid before " + from.UTC().Format(time.RFC3339), Meaning: notShown, Mend: "set this machine's clock, or have another one issued"}
	case left <= 0:
		return Finding{Severity: Critical, Found: "has expired at " + until.UTC().Format(time.RFC3339), Meaning: notShown, Mend: renewed}
	case left < min(until.Sub(from)/lateRenewal, lateRenewalMost):
		return Finding{
			Severity: Warning, Found: fmt.Sprintf("expires at %s, in %s", until.UTC().Format(time.RFC3339), left.Round(time.Minute)),
			Meaning: "most are renewed with a third of their time left, and this one was not; afterwards connections with it fail", Mend: renewed,
		}
	}
	return ok("", "is valid until "+until.UTC().Format(time.RFC3339))
}

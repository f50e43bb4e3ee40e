// Package console is the operators' page: what flows, what is stuck and why, and the way back, in a browser.
//
// Guarantees:
//   - It does nothing by itself. Everything that it changes goes through the functions of the command line, with who, why and from
//     where in the audit; a GET changes nothing.
//   - Without a login it listens on a loopback address only, and whoever reaches that may do what the page offers. With one, see package
//     access, each route needs a role; beyond loopback it is reached by TLS, or through a trusted proxy alone. It answers only requests that
//     name it (a page of elsewhere that turns its name into ours does not), takes changes from its own pages only, and lets no page frame it.
//   - Every text from a message is hostile. It is bounded, control characters and whatever turns or hides text are shown as
//     escapes, it is never markup, and a body is shown only on request. What has a masked name is shown to nobody but whoever reveals it
//     with a reason, once that is in the audit.
//   - A service that is away takes away what only that service knows. The page says so and shows the rest, and what was known before
//     with its age.
//   - Memory is bounded: samples of the last hour for a bounded number of queues, a bounded number of requests, streams and redrives.
//
// One goroutine per kind of fact asks for it, no more often than a tenth of the time allows; pages are made from what is known, and
// lists from the database when they are asked for. A page that is open is told over server-sent events that there is something new,
// and fetches itself again:
//
//	asker --fact--> known --every Interval--> sample of the last hour
//	                  '--tick--> stream --> script --GET the same address--> the parts marked as live
package console

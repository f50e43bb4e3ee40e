// Package access says who a request of the console is from, and what this person may do.
//
// There are three ways to log in, of which one is configured: a password whose hash a file has, an OpenID Connect provider, and a header of
// a proxy in front that has asked already. Without any, everybody who reaches the console is its administrator, which is why it listens on
// loopback addresses only then.
//
// Guarantees:
//   - Nobody is somebody by default: an unknown role, group or claim is refused.
//   - A header counts only from the addresses of the configured proxies; from anywhere else it is refused, and logged.
//   - A password is compared for unknown names too, at the same cost. Tries are limited by address and by name, in bounded memory.
//   - A session is made at login, with a new token of 256 bits of which only a hash is kept. It ends after a time without activity, after an
//     absolute time, at logout, when the process ends, and at once when its name is taken out of the file or gets another role or password.
//   - Addresses to go on with after login are paths of this server.
//
// Nothing of a password, token or code is logged.
package access

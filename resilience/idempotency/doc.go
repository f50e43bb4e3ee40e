// Package idempotency makes an HTTP request that is sent several times one effect and one answer.
//
// A client sends an Idempotency-Key with each operation, the same with each try of it. The key is written in the transaction
// of the request's effects, together with the answer: both are there, or neither is.
//
//		claimed --handler, answer, COMMIT--> done: the answer, to everybody who asks with this key
//		   | error or crash: rolled back          ^
//		   v                                      | outcome learned: [Steps], or [Store.Resolve] by a reconciliation
//		free: the next try runs it      pending --'  the answer says that the outcome is not known yet
//
//	  - Requests with one key run one at a time, also in different processes; the others wait and get the first one's answer.
//	    Who waits too long gets 409 IDEMPOTENCY_PENDING with Retry-After.
//	  - The same key with another method, path, query or body is 422 IDEMPOTENCY_KEY_REUSED, and does nothing. Without a key it
//	    is 400 IDEMPOTENCY_KEY_MISSING. Keys belong to their caller.
//	  - A commit whose answer was lost is looked up, and the handler runs again if it was rolled back. While that cannot be
//	    learned the answer is 409 IDEMPOTENCY_PENDING, and never success or failure.
//	  - An answer of any status that a handler returns is final and remembered; a request whose handler returns an error has
//	    done nothing, and can be tried again with the same key.
//	  - Keys are remembered for Retention, 24 h by default, which every answer says in Idempotency-Retention, in seconds. What is
//	    pending is remembered until it is known.
//
// These are the rules of draft-ietf-httpapi-idempotency-key-header, and of Stripe, but that errors are not remembered.
package idempotency

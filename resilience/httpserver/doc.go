// Package httpserver is the receiving side of an HTTP API that stays up: what every request passes before and after its
// handler, and the server around it.
//
//		request --id--> rate of this client --> requests in hand --> body and time bounded --> handler
//		                     | 429                  | 503              | 413        | 504      | problem, or panic: 500
//		                     '----------------------'------------------'------------'----------'--> problem+json with a code
//
//	  - What is refused has done nothing: no body was read, no handler ran.
//	  - Every answer that is not a success is an RFC 9457 problem with a stable code and the request's id. Nothing of the
//	    error itself is sent; it is logged once, under the same id.
//	  - Memory does not grow with the number of clients, the size of bodies, or how slowly they come.
//	  - At a stop no new connection is taken; requests in hand finish, and what outlasts the drain is cancelled with
//	    [resilience.ErrShutdown].
//
// [Server] has it all with defaults. [Limiter.Wrap] and [Shed] guard single routes.
package httpserver

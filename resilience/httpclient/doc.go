// Package httpclient calls another service over HTTP under a [policy.Policy]:
//
//	inventory, err := policy.New(policy.Options{Name: "inventory"})
//	client, err := httpclient.New(httpclient.Options{Policy: inventory})
//	resp, err := client.Do(request)
//
// Guarantees:
//   - Each attempt sends the same method, body, headers and Idempotency-Key. One that may have an effect (POST, PATCH) is tried
//     again only when it has a key.
//   - The server is told what is left for the attempt (X-Request-Timeout-Ms), the request's id (X-Request-Id: that of the context,
//     else a new one) and the trace (traceparent).
//   - What comes back is read whole and bounded, within the attempt's time. A response is either a success, or an error with a
//     stable code; see [policy.Error] and [ResponseError].
//   - Redirects are not followed: a redirected effect is somebody else's to decide. No error text has a query, a header or a body.
package httpclient

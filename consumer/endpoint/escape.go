package endpoint

import "strings"

// maxValue bounds what of a message goes into one header, in bytes before they are escaped.
const maxValue = 255

// Escape makes text from a message fit for a header: every byte that is not printable ASCII, spaces and % included, is written as %XX,
// as in URLs, so that decoding gives the bytes back. Of more than 255 bytes, which no id or type has, the first are kept.
func Escape(text string) string {
	const hex = "0123456789ABCDEF"
	text = text[:min(len(text), maxValue)]
	var out strings.Builder
	for i := range len(text) {
		if c := text[i]; c > ' ' && c < 0x7f && c != '%' {
			out.WriteByte(c)
		} else {
			out.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return out.String()
}

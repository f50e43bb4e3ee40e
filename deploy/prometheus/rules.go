// Package prometheus has the alert rules, for those who evaluate them over what was really scraped: the drill of the game day.
package prometheus

import _ "embed"

// Rules are surefoot.rules.yml.
//
//go:embed surefoot.rules.yml
var Rules string

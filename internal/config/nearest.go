package config

import (
	"fmt"
	"slices"
)

// hint proposes the known name that is nearest to an unknown one; "" when none is near.
func hint(unknown string, known []string) string {
	if name := Nearest(unknown, known); name != "" {
		return fmt.Sprintf("; did you mean %s?", name)
	}
	return ""
}

// Nearest is the known name with the fewest edits to unknown, two or a third of its length at most; ""
// when none is that near. It sorts known.
func Nearest(unknown string, known []string) string {
	if len(unknown) > 100 {
		return ""
	}
	slices.Sort(known)
	most := len(unknown) / 3
	if len(unknown) > 3 {
		most = max(most, 2) // two letters swapped are two edits
	}
	best, fewest := "", most+1
	for _, name := range known {
		if edits := distance(unknown, name); edits < fewest {
			best, fewest = name, edits
		}
	}
	return best
}

// distance counts the insertions, deletions and replacements that turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

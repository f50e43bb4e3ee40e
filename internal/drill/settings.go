package drill

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// Setting of a drill that --set can change.
type Setting struct {
	Name string `json:"name"`
	// Default is an int or a time.Duration; the latter in nanoseconds as JSON.
	Default any `json:"default"`
	// Least and Most bound it; of the default's type.
	Least any `json:"least"`
	Most  any `json:"most"`
	// Means says what it is, and what the product's own default is where it was shortened.
	Means string `json:"means"`
}

func count(name string, preset, least, most int, means string) Setting {
	return Setting{name, preset, least, most, means}
}

func length(name string, preset, least, most time.Duration, means string) Setting {
	return Setting{name, preset, least, most, means}
}

// SeedSetting can be set for every drill: the same seed draws the same random numbers.
const SeedSetting = "seed"

// Settings of one run of a drill.
type Settings struct {
	Seed   int64
	values map[string]any
}

// Int returns a setting. It panics when there is none of this name, for that is a mistake in the drill.
func (s Settings) Int(name string) int { return s.value(name).(int) }

// Duration returns a setting, like Int.
func (s Settings) Duration(name string) time.Duration { return s.value(name).(time.Duration) }

func (s Settings) value(name string) any {
	v, known := s.values[name]
	if !known {
		panic("drill: there is no setting " + name)
	}
	return v
}

// Assignment is one NAME=VALUE of --set.
type Assignment struct{ Name, Text string }

// ParseAssignments reads NAME=VALUE texts; a later one of a name wins.
func ParseAssignments(texts []string) ([]Assignment, error) {
	var all []Assignment
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || value == "" {
			return nil, fmt.Errorf("--set %.100q: use NAME=VALUE", text)
		}
		all = append(all, Assignment{name, value})
	}
	return all, nil
}

// Check reports an assignment that no drill of the list takes, or whose value is wrong for one that does.
func (a Assignment) Check(drills []Drill) error {
	if a.Name == SeedSetting {
		_, err := a.seed()
		return err
	}
	known, taken := []string{SeedSetting}, false
	for _, d := range drills {
		for _, s := range d.Settings {
			known = append(known, s.Name)
			if s.Name != a.Name {
				continue
			}
			taken = true
			if _, err := s.parse(a.Text); err != nil {
				return err
			}
		}
	}
	if taken {
		return nil
	}
	slices.Sort(known)
	known = slices.Compact(known)
	text := fmt.Sprintf("no chosen drill has a setting %.100q", a.Name)
	if near := config.Nearest(a.Name, known); near != "" {
		return fmt.Errorf("%s; did you mean %s?", text, near)
	}
	return fmt.Errorf("%s; there are %s", text, strings.Join(known, ", "))
}

func (a Assignment) seed() (int64, error) {
	seed, err := strconv.ParseInt(a.Text, 10, 64)
	if err != nil || seed < 1 {
		return 0, fmt.Errorf("--set seed cannot be %.100q: use a whole number from 1", a.Text)
	}
	return seed, nil
}

func (s Setting) parse(text string) (any, error) {
	var v any
	var err error
	if _, isLength := s.Default.(time.Duration); isLength {
		v, err = time.ParseDuration(text)
	} else {
		v, err = strconv.Atoi(text)
	}
	if err != nil || number(v) < number(s.Least) || number(v) > number(s.Most) {
		return nil, fmt.Errorf("--set %s cannot be %.100q: use %s to %s", s.Name, text, valueText(s.Least), valueText(s.Most))
	}
	return v, nil
}

// settings are the defaults of a drill with the assignments that are for it. Seed is used when none is assigned.
func (d Drill) settings(assigned []Assignment, seed int64) (Settings, error) {
	set := Settings{Seed: seed, values: map[string]any{}}
	for _, s := range d.Settings {
		set.values[s.Name] = s.Default
	}
	for _, a := range assigned {
		var err error
		if a.Name == SeedSetting {
			if set.Seed, err = a.seed(); err != nil {
				return set, err
			}
			continue
		}
		i := slices.IndexFunc(d.Settings, func(s Setting) bool { return s.Name == a.Name })
		if i < 0 {
			continue // another drill's
		}
		if set.values[a.Name], err = d.Settings[i].parse(a.Text); err != nil {
			return set, err
		}
	}
	return set, nil
}

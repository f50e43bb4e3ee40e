// Package sample makes the orders of the demonstration: always the same ones. examples/shop/testdata/orders.jsonl
// is what [Write] writes.
package sample

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	catalogue "github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
)

// Count is the number of different orders.
const Count = 240

// twice is the order that is sent twice.
const twice = 100

// Cards of the sample. They pay well, but for the declined one, unless the provider is given [Rules].
const (
	CardFlaky = "tok_flaky" // 503 twice, then charged
	CardHang  = "tok_hang"  // charged, but the answer never comes
	CardStuck = "tok_stuck" // 503 for ever: a case for the watchdog
)

// Rules are the provider's faults for the sample's cards.
func Rules() []provider.Rule {
	return []provider.Rule{
		{Card: CardFlaky, Fault: provider.FaultUnavailable, Times: 2},
		{Card: CardHang, Fault: provider.FaultHang, Times: 1},
		{Card: CardStuck, Fault: provider.FaultUnavailable},
	}
}

// catalog has names in the world's scripts.
var catalog = []struct {
	sku, name string
	cents     int64
}{
	{"tea-01", "Thé vert à la menthe", 1290},
	{"cup-02", "Große Tasse, weiß", 890},
	{"book-03", "吾輩は猫である", 1600},
	{"lamp-04", "مصباح نحاسي", 4550},
	{"scarf-05", "Шерстяной шарф", 2999},
	{"oil-06", "Ελαιόλαδο 500 ml", 1175},
	{"rug-07", "हस्तनिर्मित कालीन", 18900},
	{"kite-08", "연 만들기 세트", 1350},
	{"game-09", "משחק לוח", 3200},
	{"cake-10", "Bánh chưng", 760},
	{"drum-11", "กลองไม้", 5400},
	{"mask-12", "Máscara de 🦊", 999},
	{"pen-13", "Fountain pen & ink", 2250},
	{"soap-14", "Savon <naturel>", 450},
	{"map-15", "Þjóðvegakort", 1820},
	{"nuts-16", "Fıstık 250 g", 640},
}

// Items are the catalog's, with the one that is sold out.
func Items() []catalogue.Item {
	items := []catalogue.Item{{SKU: soldOut, Name: "Единственный экземпляр", UnitPriceCents: 99900, Currency: "EUR"}}
	for _, item := range catalog {
		items = append(items, catalogue.Item{SKU: item.sku, Name: item.name, UnitPriceCents: item.cents, Currency: "EUR"})
	}
	return items
}

// Customers of each tenant are c1, c2 and so on.
func Customers() []customers.Customer {
	var all []customers.Customer
	for _, tenant := range tenants {
		for i, name := range names {
			id := fmt.Sprintf("c%d", i+1)
			all = append(all, customers.Customer{Tenant: tenant, ID: id, Customer: event.Customer{Name: name, Email: id + "@" + tenant + ".example"}})
		}
	}
	return all
}

// soldOut is in the catalog and not in stock.
const soldOut = "rare-99"

var names = []string{
	"Zoë Müller", "山田 花子", "محمد الأمين", "Анна Иванова", "Σοφία Παπαδοπούλου", "अर्जुन शर्मा", "김민준", "נועה לוי",
	"Nguyễn Thị Ánh", "สมชาย ใจดี", "Jose\u0301 Nuñez", "Łukasz Żółć", "O'Brien, Siobhán", "👩‍🚀 Ada", "Þóra Jónsdóttir", "İlker Şahin",
}

var tenants = []string{"alpine", "bazaar", "corner"}

// phrases make notes of any length.
var phrases = []string{
	"Happy birthday, and many more! ", "誕生日おめでとう。", "С днём рождения! ", "كل عام وأنتم بخير ", "Alles Gute – und \"bis bald\"! ", "🎁🎉 ",
}

// Orders are the different orders.
func Orders() []orders.Order {
	all := make([]orders.Order, Count)
	r := random(2024)
	for i := range all {
		all[i] = order(i, &r)
	}
	return all
}

func order(i int, r *random) orders.Order {
	name := names[r.below(len(names))]
	o := orders.Order{
		Tenant: tenants[i%len(tenants)], IdempotencyKey: fmt.Sprintf("web-%04d", i),
		Customer: event.Customer{Name: name, Email: fmt.Sprintf("customer%d@mail.example", r.below(90))},
		Card:     card(i), Note: note(i),
	}
	if i%79 == 5 {
		o.Customer.Email = fmt.Sprintf("gone%d@bounce.example", i)
	}
	for range 1 + (i+r.below(2))%orders.MaxLines {
		item := catalog[r.below(len(catalog))]
		o.Lines = append(o.Lines, event.Line{SKU: item.sku, Name: item.name, Quantity: 1 + r.below(3), UnitPriceCents: item.cents})
	}
	if i%17 == 3 {
		o.Lines[r.below(len(o.Lines))] = event.Line{SKU: soldOut, Name: "Единственный экземпляр", Quantity: 1, UnitPriceCents: 99900}
	}
	return o
}

func card(i int) string {
	switch {
	case i%23 == 7:
		return provider.CardDeclined
	case i%31 == 11:
		return CardFlaky
	case i%97 == 40:
		return CardHang
	case i == 151:
		return CardStuck
	}
	return provider.CardGood
}

// note has no text for most orders, a page for some, and for one as much as fits into 200 KiB of event.
func note(i int) string {
	size := 0
	switch {
	case i == 120:
		size = 196 << 10
	case i%60 == 30:
		size = 40 << 10
	case i%20 == 10:
		size = 4 << 10
	case i%3 == 1:
		size = 80
	}
	var text strings.Builder
	for n := i; text.Len() < size; n++ {
		text.WriteString(phrases[n%len(phrases)])
	}
	return text.String()
}

// Stock is what the inventory has at the start.
func Stock() map[string]int {
	stock := map[string]int{soldOut: 0}
	for _, item := range catalog {
		stock[item.sku] = 100_000
	}
	return stock
}

// Expected is how an order ends when the provider follows [Rules] and the watchdog cancels in time.
func Expected(o orders.Order) (status, reason string) {
	for _, line := range o.Lines {
		if line.SKU == soldOut {
			return orders.StatusCancelled, event.ReasonOutOfStock
		}
	}
	switch o.Card {
	case provider.CardDeclined:
		return orders.StatusCancelled, event.ReasonCardDeclined
	case CardStuck:
		return orders.StatusCancelled, event.ReasonPaymentTimeout
	}
	return orders.StatusConfirmed, ""
}

// Write writes all orders as JSON lines, one of them twice.
func Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for i, o := range Orders() {
		if err := encoder.Encode(o); err != nil {
			return fmt.Errorf("write orders: %w", err)
		}
		if i != twice {
			continue
		}
		if err := encoder.Encode(o); err != nil {
			return fmt.Errorf("write orders: %w", err)
		}
	}
	return nil
}

// random is a generator of our own (Knuth's MMIX), so that no library can change the orders.
type random uint64

func (r *random) below(n int) int {
	*r = *r*6364136223846793005 + 1442695040888963407
	return int(uint64(*r>>33) % uint64(n))
}
